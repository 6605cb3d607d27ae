"""The documentation site: it builds without a warning, and has all pages, names and commands."""

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.judges import library
from tests.test_reference import reference
from utracefs.cli import cli

library("sphinx")
library("furo")
library("myst_parser")

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "sphinx"


def build(source: Path, out: Path) -> subprocess.CompletedProcess[str]:
    options = ["-q", "-E", "-W", "--keep-going", "-c", str(FOLDER)]
    command = [sys.executable, "-m", "sphinx", *options, str(source), str(out)]
    return subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    done = build(ROOT, out)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    return out


def test_every_page_is_there(site: Path) -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
    assert len(pages) > 12
    first = (site / "README.html").read_text()
    for page in pages:
        name = page.relative_to(ROOT).with_suffix(".html").as_posix()
        assert (site / name).exists()
        assert name == "README.html" or f'href="{name}"' in first
    assert "README.html" in (site / "index.html").read_text()


def test_public_names_and_commands(site: Path) -> None:
    shown = (site / "docs" / "python-api.html").read_text()
    for module in ("utracefs", "utracefs.export", "utracefs.streaming", "utracefs.recordings.recording"):
        for name in importlib.import_module(module).__all__:
            assert name == "__version__" or re.search(rf'id="utracefs[\w.]*\.{name}"', shown), name
    shown = (site / "docs" / "command-line.html").read_text()
    for name in cli.list_commands(cli.make_context("utracefs", [], resilient_parsing=True)):
        assert f'id="utracefs-{name}"' in shown
    assert 'id="utracefs-perf-record"' in shown
    assert "--ring-kb" in shown or "--buffer-size-kb" in shown


def test_a_link_to_nowhere_is_an_error(tmp_path: Path) -> None:
    table = "# x\n\n## Documentation\n\n| page | about |\n|---|---|\n| **How to** | |\n| [x](page.md) | x |\n"
    (tmp_path / "README.md").write_text(table)
    page = "# Page\n\n[x](other.md)\n\n[x](page.md#nowhere)\n\n[x](#gone)\n\n![x](nowhere.png)\n"
    (tmp_path / "page.md").write_text(page)
    done = build(tmp_path, tmp_path / "out")
    assert done.returncode != 0
    for says in ("target not found: 'other.md'", "local id not found", "gone", "image file not readable"):
        assert says in done.stderr, done.stderr


def test_a_page_without_a_row_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("# x\n\n## Documentation\n\n| page | about |\n|---|---|\n")
    (tmp_path / "page.md").write_text("# Page\n")
    assert "isn't included in any toctree" in build(tmp_path, tmp_path / "out").stderr


def test_docstrings_become_markdown() -> None:
    def made() -> None:
        """It reads.

        size: bytes,
        at most.
        OSError: `a<b` or c<d.

        Other: words.
            x < y
        """

    assert reference().prose(made, {"size"}) == [
        "It reads.",
        "",
        "- `size`: bytes,",
        "  at most.",
        "- `OSError`: `a<b` or c&lt;d.",
        "",
        "Other: words.",
        "    x < y",
    ]


def test_signatures() -> None:
    node = ast.parse("def f(self, a: 'int' = 1, *, b: bytes) -> 'str': ...").body[0]
    assert reference().arguments(node, True) == "(a: int=1, *, b: bytes) -> str"
    assert reference().arguments(node, False) == "(self, a: int=1, *, b: bytes) -> str"
    assert {"Event"} <= set(reference().sources_of("utracefs.producer._event"))
