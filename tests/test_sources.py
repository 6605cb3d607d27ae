"""Rules for every source file: imports between packages, no circles, length of functions and lines, a test of
its name.

Large files and folders are no errors: `python tests/test_sources.py` prints them, as `make lint` does.
import-linter checks Python files; imports of compiled modules (import and cimport), imports inside functions
and those for type checkers are checked here.
"""

import ast
import functools
import graphlib
import itertools
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = [ROOT / "protocol", ROOT / "client", ROOT / "daemon"]
MODULES = {
    ".".join(p for p in path.relative_to(folder).with_suffix("").parts if p != "__init__"): path
    for folder in FOLDERS
    for suffix in ("*.py", "*.pyx")
    for path in folder.rglob(suffix)
}
DECLARATIONS = {"utracefs.producer._binding"}
"""Declarations of a C header alone: no module imports them."""
C_CLIENT = ROOT / "client" / "c"
MADE = [C_CLIENT / "build", ROOT / "client" / "utracefs" / "c"]
TEXTS = sorted(
    path
    for folder in [*FOLDERS, ROOT / "tests", ROOT / "bench", ROOT / "examples"]
    for path in folder.rglob("*")
    if not any(path.is_relative_to(made) for made in MADE)
    if path.suffix in (".py", ".pyx", ".pxd", ".h", ".hpp", ".cpp", ".js", ".css", ".html")
    # In folders with compiled modules the other .c files are made by Cython.
    or (path.suffix == ".c" and (folder not in FOLDERS or path.is_relative_to(C_CLIENT)))
)
LONGEST_LINE = 110
LONGEST_FILE = 800
LONGEST_FUNCTION = 80
LARGEST_FOLDER = 16
"""Modules, except __init__, __main__ and conftest."""


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


@functools.cache
def imports() -> dict[str, set[str]]:
    return {name: imported(path) - {name} for name, path in MODULES.items()}


def test_no_import_circle() -> None:
    """A package's own __init__ is left out when it is only passed."""
    done: set[str] = set()
    way: list[str] = []

    def walk(name: str) -> None:
        assert name not in way, " -> ".join([*way[way.index(name) :], name])
        if name in done:
            return
        way.append(name)
        for other in sorted(imports()[name]):
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

            for name, others in imports().items():
                for other in others:
                    here, there = level_of(name), level_of(other)
                    if here and there and here != there:
                        assert here[0] < there[0], f"{name} imports {other}"
                        checked += 1
    assert checked > 100


def test_a_clock_is_an_argument() -> None:
    """Only the daemon's edge, and `machine/_machine` for compiled modules, read one: a simulation sets the
    time of all others."""
    daemon = ROOT / "daemon" / "utracefsd"
    edge = [daemon / "server", daemon / "machine" / "include", *daemon.glob("machine/*.p[yx][xd]")]
    clock = re.compile(
        r"^\s*(?:import|from) (?:time|datetime)\b|clock_gettime\(|clock_now\(|machine_c|sched_getcpu",
        re.MULTILINE,
    )
    found = [
        f"{path.relative_to(ROOT)}: {found[0].strip()}"
        for path in TEXTS
        if path.is_relative_to(daemon) and not any(path.is_relative_to(one) for one in edge)
        if (found := clock.search(path.read_text()))
    ]
    assert found == []


def test_files_change_through_one_port() -> None:
    """The daemon changes files by calls of `machine/disk`, each of which a simulation lets fail."""
    daemon = ROOT / "daemon" / "utracefsd"
    others = [daemon / "server", daemon / "main.py", daemon / "machine/disk.py", daemon / "machine/procfs.py"]
    # Opening /dev/null and /proc changes nothing.
    change = re.compile(
        r"\bos\.(?:open\((?!f?\"/)|(?:p?write|f?truncate|posix_fallocate|rename|replace|unlink|remove|mkdir"
        r"|memfd_create)\()|shutil|path\.(?:unlink|rename|mkdir|write)"
    )
    found = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in TEXTS
        if path.is_relative_to(daemon) and not any(path.is_relative_to(one) for one in others)
        for line in path.read_text().splitlines()
        if change.search(line)
    ]
    assert found == []


def test_lengths() -> None:
    long = []
    for path in TEXTS:
        lines = enumerate(path.read_text().splitlines(), 1)
        long += [f"{path.relative_to(ROOT)}:{i}" for i, line in lines if len(line) > LONGEST_LINE]
    assert not long


def functions(path: Path, text: str) -> Iterator[tuple[str, int]]:
    """Each function's first line, and its number of lines."""
    lines = text.splitlines()
    if path.suffix == ".py":
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno
                yield lines[node.lineno - 1], node.end_lineno - node.lineno + 1
    elif path.suffix in (".pyx", ".pxd"):
        for i, line in enumerate(lines):
            if found := re.match(r"( *)(?:async def|def|cdef(?! class)|cpdef) [^=]*\(", line):
                in_body = re.compile(found[1] + r" |\s*\)|$").match
                inside = itertools.takewhile(in_body, lines[i + 1 :])
                yield line, len("\n".join([line, *inside]).rstrip().splitlines())
    elif path.suffix == ".js":
        for i, line in enumerate(lines):
            named = r"(\t*)(?!if|for|while|switch)(?:export |async |static )*(?:function )?\w+\(.*\{$"
            if found := re.match(named, line):
                in_body = re.compile(rf"(?!{found[1]}\}})").match
                yield line, len(list(itertools.takewhile(in_body, lines[i:]))) + 1
    elif path.suffix in (".c", ".h", ".hpp", ".cpp"):
        begin = None
        for i, line in enumerate(lines):
            if line == "{" or re.match(r"\w.*\).*\{$", line):
                begin = i
            elif line.startswith("}") and begin is not None:
                yield lines[max(begin - 1, 0)], i - begin + 1
                begin = None


COMMENTS = re.compile(r"(?m)^\s*#(?![a-z]).*\n|^\s*//.*\n|^\s*/\*(?s:.)*?\*/\n")
"""On lines of their own: the reason of a stage costs no stage."""


def test_functions_fit_a_screen() -> None:
    long = [
        f"{path.relative_to(ROOT)}: {line.strip()} {size} lines"
        for path in TEXTS
        for line, size in functions(path, COMMENTS.sub("", path.read_text()))
        if size > LONGEST_FUNCTION
    ]
    assert not long


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.py", "class A:\n    @b\n    def f(\n        self,\n    ):\n        pass\n\n\nx = 1\n"),
        (
            "a.pyx",
            "cdef class A:\n    cdef int f(self,\n\n        int a\n    ) except -1:\n        pass\n\nx = 1\n",
        ),
        ("a.c", "int f(void)\n{\n\tif (a) {\n\t}\n}\n\nstruct s {\n\tint a;\n};\n"),
        ("a.h", "static int f(void) {\n\tif (a)\n\t\tb();\n}\n"),
        ("a.js", "class A {\n\tasync f(a) {\n\t\tif (a) {\n\t\t}\n\t}\n}\n"),
    ],
)
def test_lengths_of_functions(name: str, text: str) -> None:
    assert [size for _, size in functions(Path(name), text)] == [5 if name == "a.pyx" else 4]


def test_no_include_circle() -> None:
    """Headers and C files; tests/client/c/test_layers.py has the calls of the C client."""
    files = {path.name: path for path in TEXTS if path.suffix in (".c", ".h")}
    includes = {
        name: set(re.findall(r'^#include "([\w.]+)"', path.read_text(), re.MULTILINE)) & {*files}
        for name, path in files.items()
    }
    assert sum(map(len, includes.values())) > 50
    try:
        list(graphlib.TopologicalSorter(includes).static_order())
    except graphlib.CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


WITHOUT_A_TEST = {
    "__main__": "two lines, run by the tests of processes",
    "utracefs.cli.record.job": "test_record.py and test_flight.py run it",
    "utracefs.cli.record.options": "test_record.py has the options that exclude each other",
    "utracefs.producer.totals": "test_session.py has what cannot be changed",
    "utracefsd.connections.fair_scheduler": "test_acceptor.py, port/test_hostile.py",
    "utracefsd.consumers.ftrace.instance": "tests/simulation has instances beside each other",
}
"""Sources without a test of their name, and why."""


def test_a_source_has_a_test_of_its_name() -> None:
    """A small one may be in a file of its folder's tests."""
    missing = []
    for name, path in MODULES.items():
        *rooms, last = name.split(".")
        if path.name == "__init__.py" or last in WITHOUT_A_TEST or name in WITHOUT_A_TEST:
            continue
        folder = ROOT / "tests" / path.relative_to(ROOT).parts[0] / Path(*rooms[1:])
        if (folder / f"test_{last.lstrip('_')}.py").exists():
            continue
        named = re.compile(rf"{name}\b|from {'.'.join(rooms)} import .*\b{last}\b")
        if not any(named.search(path.read_text()) for path in folder.glob("test_*.py")):
            missing.append(name)
    assert not missing


def large() -> Iterator[str]:
    """Files and folders above the usual size. One large file is better than four that need each other."""
    modules: dict[Path, set[str]] = {}
    for path in TEXTS:
        if (size := len(path.read_text().splitlines())) > LONGEST_FILE:
            yield f"{path.relative_to(ROOT)}: {size} lines"
        if path.suffix not in (".js", ".css", ".html") and not path.is_relative_to(ROOT / "bench"):
            modules.setdefault(path.parent.relative_to(ROOT), set()).add(path.stem)
    for folder, names in modules.items():
        if (size := len(names - {"__init__", "__main__", "conftest"})) > LARGEST_FOLDER:
            yield f"{folder}: {size} modules"


if __name__ == "__main__":
    for line in large():
        print("large:", line)
