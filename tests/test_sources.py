"""Rules for every source file: imports between packages, no circles, length of files and lines, a test of its
name.

import-linter checks Python files; imports of compiled modules (import and cimport), imports inside functions
and those for type checkers are checked here.
"""

import ast
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = [ROOT / "protocol", ROOT / "client", ROOT / "daemon"]
MODULES = {
    ".".join(p for p in path.relative_to(folder).with_suffix("").parts if p != "__init__"): path
    for folder in FOLDERS
    for suffix in ("*.py", "*.pyx")
    for path in folder.rglob(suffix)
}
DECLARATIONS = {"utracefs._binding"}
"""Of a C header alone: no module imports them."""
C_CLIENT = ROOT / "client" / "c"
MADE = [C_CLIENT / "build", ROOT / "client" / "utracefs" / "c"]
TEXTS = sorted(
    path
    for folder in [*FOLDERS, ROOT / "tests", ROOT / "bench", ROOT / "examples"]
    for path in folder.rglob("*")
    if not any(path.is_relative_to(made) for made in MADE)
    if path.suffix in (".py", ".pyx", ".pxd", ".pyi", ".h", ".hpp", ".cpp", ".js", ".css", ".html")
    # In folders with compiled modules the other .c files are made by Cython.
    or (path.suffix == ".c" and (folder not in FOLDERS or path.is_relative_to(C_CLIENT)))
)
LONGEST_LINE = 110
LONGEST_FILE = 700
LONGER_FILES = {
    "ring_buffer.h": "one story, argued store by store",
}
"""Files that may be longer, and why."""


def imported(path: Path) -> set[str]:
    """This project's modules that a source imports, at any place: Python's imports and Cython's."""
    text = path.read_text()
    if path.suffix == ".pyx" and path.with_suffix(".pxd").exists():
        text += path.with_suffix(".pxd").read_text()
    found: set[str] = set()
    if path.suffix == ".py":
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import):
                found.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0 and node.module
                found.update(f"{node.module}.{alias.name}" for alias in node.names)
    else:
        for module, names in re.findall(r"^\s*from ([\w.]+) c?import (\([^)]*\)|.*)$", text, re.MULTILINE):
            listed = names.strip("()").replace("\n", " ").split(",")
            found.update(f"{module}.{name.split()[0]}" for name in listed if name.strip())
        found.update(re.findall(r"^\s*c?import ([\w.]+)", text, re.MULTILINE))
    return {module for name in found if (module := module_of(name))}


def module_of(name: str) -> str | None:
    """The module that `name` is, or that contains it."""
    if name.rpartition(".")[0] in DECLARATIONS:
        return None
    while name:
        if name in MODULES:
            return name
        name = name.rpartition(".")[0]
    return None


IMPORTS = {name: imported(path) - {name} for name, path in MODULES.items()}


def test_no_import_circle() -> None:
    """A package's own __init__ is left out when it is only passed."""
    done: set[str] = set()
    way: list[str] = []

    def walk(name: str) -> None:
        assert name not in way, " -> ".join([*way[way.index(name) :], name])
        if name in done:
            return
        way.append(name)
        for other in sorted(IMPORTS[name]):
            walk(other)
        way.pop()
        done.add(name)

    for name in MODULES:
        walk(name)


def test_rooms_import_only_downwards() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    checked = 0
    for contract in contracts:
        if contract["type"] != "layers":
            continue
        for container in contract.get("containers", [""]):
            level = {
                f"{container}.{room.strip()}".strip("."): i
                for i, rooms in enumerate(contract["layers"])
                for room in rooms.strip("()").split("|")
            }

            def level_of(name: str, level: dict[str, int] = level) -> tuple[int, str] | None:
                rooms = [room for room in level if name == room or name.startswith(room + ".")]
                return (level[rooms[0]], rooms[0]) if rooms else None

            for name, others in IMPORTS.items():
                for other in others:
                    here, there = level_of(name), level_of(other)
                    if here and there and here != there:
                        assert here[0] < there[0], f"{name} imports {other}"
                        checked += 1
    assert checked > 100


def test_lengths() -> None:
    long = []
    for path in TEXTS:
        lines = path.read_text().splitlines()
        where = path.relative_to(ROOT)
        if path.name != "kernel_types.py":  # what a kernel printed, in its lines
            long += [f"{where}:{i}" for i, line in enumerate(lines, 1) if len(line) > LONGEST_LINE]
        if len(lines) > LONGEST_FILE and path.name not in LONGER_FILES:
            long.append(f"{where}: {len(lines)} lines")
    assert not long


WITHOUT_A_TEST = {
    "__main__": "two lines, run by the tests of processes",
}
"""Sources without a test of their name, and why."""


def test_a_source_has_a_test_of_its_name() -> None:
    missing = []
    for name, path in MODULES.items():
        *rooms, last = name.split(".")
        if path.name == "__init__.py" or last in WITHOUT_A_TEST or name in WITHOUT_A_TEST:
            continue
        folder = ROOT / "tests" / path.relative_to(ROOT).parts[0] / Path(*rooms[1:])
        if not (folder / f"test_{last.lstrip('_')}.py").exists():
            missing.append(name)
    assert not missing
