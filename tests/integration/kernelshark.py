"""KernelShark on a screen that nobody sees: `python -m tests.integration.kernelshark FILE OUT.png` makes a
picture of a trace.dat.
"""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tests.judges import judge

__all__ = ["opened", "picture", "screen"]

NOBODY = 65534
OPENS_S = 60
DRAWS_S = 30


@contextlib.contextmanager
def screen() -> Iterator[str]:
    """Its display. It has 1280 x 800 points; any local process may draw on it."""
    number, number_w = os.pipe()
    words = [judge("Xvfb"), "-displayfd", str(number_w), "-screen", "0", "1280x800x24", "-nolisten", "tcp"]
    with subprocess.Popen([*words, "-ac"], pass_fds=[number_w], stderr=subprocess.DEVNULL) as server:
        os.close(number_w)
        try:
            with open(number, "rb") as answer:
                yield f":{int(answer.readline())}"
        finally:
            server.terminate()


def _titles(display: str) -> str:
    """Of all windows, with their sizes."""
    words = [judge("xwininfo"), "-display", display, "-root", "-tree"]
    return subprocess.run(words, capture_output=True, text=True, timeout=20, check=True).stdout


@contextlib.contextmanager
def opened(path: Path, folder: Path, display: str) -> Iterator[list[str]]:
    """KernelShark has opened the file. The list gets what it said, at the end.

    folder: of the file, with `home` and `run` that belong to NOBODY where we are root: KernelShark asks root
    whether he means it.
    """
    environ = {
        **os.environ,
        "DISPLAY": display,
        "HOME": str(folder / "home"),
        "XDG_RUNTIME_DIR": str(folder / "run"),
        "QT_QPA_PLATFORM": "xcb",
    }
    said: list[str] = []
    with subprocess.Popen(
        [judge("kernelshark"), "-qwindowgeometry", "1280x800+0+0", str(path)],
        env=environ,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        user=None if os.geteuid() else NOBODY,
        group=None if os.geteuid() else NOBODY,
        extra_groups=None if os.geteuid() else [],
    ) as shark:
        try:
            deadline = time.monotonic() + OPENS_S
            while f'"Kernel Shark ({path})"' not in (seen := _titles(display)):
                assert shark.poll() is None and time.monotonic() < deadline, seen
                time.sleep(0.1)
            yield said
            assert shark.poll() is None
        finally:
            shark.terminate()
        said += shark.communicate(timeout=20)[0].splitlines()


def picture(display: str, out: Path) -> None:
    """A PNG of the screen, once it stays the same: the window is there before what it shows."""
    deadline = time.monotonic() + DRAWS_S
    before = b""
    while True:
        words = [judge("import"), "-display", display, "-window", "root", f"png:{out}"]
        subprocess.run(words, check=True, timeout=30)
        now = _points(out)
        if (now == before and len(set(now)) > 1) or time.monotonic() > deadline:
            return
        before = now
        time.sleep(0.5)


def _points(png: Path) -> bytes:
    words = [judge("convert"), str(png), "-depth", "8", "-resize", "320x200", "gray:-"]
    return subprocess.run(words, capture_output=True, check=True, timeout=30).stdout


def prepare(folder: Path) -> Path:
    """A folder that NOBODY gets into, with what KernelShark wants there."""
    for name in ("home", "run"):
        (folder / name).mkdir(mode=0o700)
        if not os.geteuid():
            os.chown(folder / name, NOBODY, NOBODY)
    folder.chmod(0o755)
    return folder


def main(source: str, out: str) -> None:
    import shutil
    import tempfile

    with tempfile.TemporaryDirectory(prefix="utracefs-") as name:
        folder = prepare(Path(name))
        path = Path(shutil.copy(source, folder / "trace.dat"))
        path.chmod(0o644)
        with screen() as display, opened(path, folder, display):
            picture(display, folder / "shot.png")
        shutil.copy(folder / "shot.png", out)


if __name__ == "__main__":
    main(*sys.argv[1:])
