"""Records the example and shows it: report.png and report-dark.png by `utracefs report --html` in Chromium,
kernelshark.png. They are made small: 160 colours."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

from tests.client.html.chromium import Chromium, Page
from tests.integration.tools.x_screen import open_folder, screen, screenshot, shown_in_kernelshark

ROOT = Path(__file__).parents[2]
SETTLED = (
    "!!document.body?.dataset.complete"
    " && document.getElementById('cards').getAttribute('aria-busy') === 'false'"
)
SIZE = (1400, 800)
KERNELSHARK_DRAWS_S = 3.0
"""It says to nobody when it has drawn."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=ROOT / "docs" / "images")
    to: Path = parser.parse_args().folder
    to.mkdir(parents=True, exist_ok=True)
    with open_folder() as folder:
        trace = folder / "trace.dat"
        utracefs = [sys.executable, "-m", "utracefs"]
        example = [sys.executable, str(ROOT / "examples" / "shop.py")]
        subprocess.run([*utracefs, "record", "-o", str(trace), "--", *example], cwd=folder, check=True)
        trace.chmod(0o644)
        subprocess.run([*utracefs, "report", "--html", str(trace)], cwd=folder, check=True)
        page_shots(folder / "trace.html", to)
        with screen("x".join(map(str, SIZE))) as display, shown_in_kernelshark(trace, display, folder, SIZE):
            time.sleep(KERNELSHARK_DRAWS_S)
            write(to / "kernelshark.png", screenshot(display))


def page_shots(path: Path, to: Path) -> None:
    with Chromium() as browser:
        with browser.page(path, size=SIZE) as page:
            page.until(SETTLED)
            page.key(".")
            shot(page, to / "report.png")
        with browser.page(path, size=SIZE, dark=True) as page:
            page.until(SETTLED)
            page.search("amount_cent>3000 -status=0")
            page.key("Escape")
            for key in ("w", "w", "."):
                page.key(key)
            shot(page, to / "report-dark.png")


def shot(page: Page, path: Path) -> None:
    page.value("new Promise((done) => setTimeout(done, 200))")
    page.until(SETTLED)
    write(path, page.screenshot())


def write(path: Path, png: bytes) -> None:
    words = [
        "convert",
        "png:-",
        "+dither",
        "-colors",
        "160",
        "-strip",
        "-define",
        "png:compression-level=9",
        "PNG8:-",
    ]
    path.write_bytes(subprocess.run(words, input=png, capture_output=True, check=True).stdout)
    print(f"{path}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
