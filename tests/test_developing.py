"""Files, make targets, commands and names of the sources that docs/developing.md mentions exist; also those
of the table in docs/architecture.md."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from utracefs.cli import cli

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "developing.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```\w+\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
PROSE = re.sub(r"^```.*?^```$", "", PAGE, flags=re.MULTILINE | re.DOTALL)
SPANS = [span for text in re.findall(r"`([^`]+)`", PROSE) for span in text.replace("\n", " ").split()]
SPANS += [word for line in re.findall(r"^    (.*)$", PROSE, re.MULTILINE) for word in line.split()]
NEW = {
    "nr_enabled",
    "nr_enabled_text",
    "test_nr_enabled",
    "utracefs_longest",
    "tsv.py",
    "test_tsv.py",
    "write_tsv",
    "exists",
    "Exists",
    "_exists",
    "longest",
}
"""Results of the recipes."""
SOURCES = [
    path
    for folder in ("protocol", "client", "daemon", "tests")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in (".py", ".pyx", ".pxd", ".h") and path != Path(__file__)
] + list((ROOT / "client" / "c" / "src").rglob("*.c"))


def test_lines_of_the_page() -> None:
    lines = PAGE.splitlines()
    assert len(lines) <= 250
    assert [line for line in lines if len(line) > 100] == []


def test_files() -> None:
    named = {
        span.rstrip(":,.") for span in SPANS if re.fullmatch(r"[\w./]*\w\.(py|pyx|h|c|md|toml)[:,.]?", span)
    } | {re.sub(r"#.*", "", link) for link in re.findall(r"\]\(([^)]+)\)", PAGE)}
    below = {
        path.relative_to(ROOT).as_posix()
        for folder in ("protocol", "client", "daemon", "tests", "docs", "examples")
        for path in (ROOT / folder).rglob("*")
    } | {path.name for path in ROOT.iterdir()}
    assert len(named) > 25
    for name in named:
        if name.startswith(("/tmp/", "longest/")) or name.rpartition("/")[2] in NEW:
            continue
        assert any(f"/{path}".endswith(f"/{name.removeprefix('../')}") for path in below), name


def test_files_of_architecture() -> None:
    """`Where to change what`: files, and the names in them."""
    rows = ARCHITECTURE.partition("## Where to change what\n")[2].partition("\n## ")[0].splitlines()[3:]
    rows = [row.split(" | ")[1] for row in rows if row.startswith("| ")]
    assert len(rows) > 12
    for row in rows:
        spans = re.findall(r"`([^`]+)`", row)
        paths = [
            ROOT / span for span in spans if span.split("/")[0] in ("client", "daemon", "docs", "protocol")
        ]
        assert paths or "](" in row or "utracefs.attach" in row, row
        assert [path for path in paths if not path.exists()] == []
        for name in re.findall(r"`(\w+)` in `([^`]+)`", row):
            where = [path for path in paths if path.as_posix().endswith(name[1])] or [
                ROOT / "client" / "utracefs" / name[1]
            ]
            assert re.search(rf"\b{name[0]}\b", where[0].read_text()), name


def test_make_targets() -> None:
    targets = re.findall(r"\bmake ([a-z]+)\b", PAGE)
    makefile = (ROOT / "Makefile").read_text()
    assert {"build", "debug", "test"} <= set(targets)
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_modules_and_functions_for_gdb() -> None:
    (modules,) = re.findall(r"make debug EXT=(\S+)", PAGE)
    for module in modules.split(","):
        assert any(
            (ROOT / folder / module.replace(".", "/")).with_suffix(".pyx").exists()
            for folder in ("protocol", "client", "daemon")
        ), module
    for file, function in re.findall(r"rbreak (\w+\.pyx):(\w+)\$", PAGE):
        name = function.removeprefix("FtraceProbe_")
        assert any(
            re.search(rf"^ *cdef .*\b{name}\(", path.read_text(), re.MULTILINE)
            for path in SOURCES
            if path.name == file
        ), function


def test_commands() -> None:
    commands = set(re.findall(r"\butracefs ([a-z]+)\b", " ".join(SPANS)))
    assert {"enable", "cat", "doctor", "attach", "record"} <= commands
    for command in commands:
        assert CliRunner().invoke(cli, [command, "--help"]).exit_code == 0, command


@pytest.fixture(scope="module")
def text() -> str:
    return "\n".join(path.read_text(encoding="utf-8", errors="replace") for path in SOURCES)


def unknown(spans: list[str], text: str) -> set[str]:
    """Names with an underscore or two capitals that no source has."""
    words = {word for span in spans for word in re.findall(r"(?<![\w/.])[A-Za-z_]\w*", span)}
    wanted = {word for word in words if re.search(r"\w_\w|[a-z][A-Z]", word) and not word.startswith("__pyx")}
    return wanted - set(re.findall(r"\w+", text))


def test_names(text: str) -> None:
    """In sentences and in the examples."""
    found = unknown([*SPANS, *BLOCKS], text)
    missing = {word for word in found if word not in NEW and not word.startswith("FtraceProbe_")}
    assert missing <= {"build_ext", "ptrace_scope"}, missing


def test_names_of_architecture(text: str) -> None:
    """Functions, and methods of the class in front of them."""
    page = re.sub(r"^```.*?^```$", "", ARCHITECTURE, flags=re.MULTILINE | re.DOTALL)
    assert unknown(re.findall(r"`([^`]+)`", page), text) == set()
    pairs = set(re.findall(r"`([A-Z]\w+)\.(\w+)`", page))
    assert len(pairs) > 40
    _, *parts = re.split(r"(?m)^(?:cdef )?class (\w+)", text)
    bodies = list(zip(parts[::2], parts[1::2], strict=True))
    for kind, method in pairs:
        found = any(name == kind and re.search(rf"\b{method}\b", body) for name, body in bodies)
        assert found, f"{kind}.{method}"
