"""The recipes of docs/developing.md, carried out in a copy of the sources: the tests in them pass there."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.integration.pages import blocks

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "developing.md").read_text()
CODE = [block.text for block in blocks(PAGE) if block.kind == "python"]
COPIED = ("protocol", "client/utracefs", "daemon", "tests", "docs")


def copy(folder: Path) -> None:
    """Links; an edit replaces one by a file."""
    ignored = shutil.ignore_patterns("__pycache__", "*.c")
    for name in COPIED:
        shutil.copytree(ROOT / name, folder / name, copy_function=os.symlink, ignore=ignored)
    (folder / "pyproject.toml").symlink_to(ROOT / "pyproject.toml")


def code(name: str) -> str:
    """The block of the page that defines it."""
    (found,) = (text for text in CODE if re.search(rf"\b(?:def|class) {name}\b", text))
    return found


def put(path: Path, text: str) -> None:
    path.unlink(missing_ok=True)
    path.write_text(text)


def insert(path: Path, after: str, text: str) -> None:
    """Behind the one line that contains `after`."""
    head, found, rest = path.read_text().partition(after)
    assert found and after not in rest, after
    line, _, rest = rest.partition("\n")
    put(path, f"{head}{found}{line}\n{text}{rest}")


def insert_behind(path: Path, definition: str, text: str) -> None:
    """Behind the function or class that begins with this line."""
    head, found, rest = path.read_text().partition(definition)
    assert found, definition
    body, _, rest = rest.partition("\n\n")
    gap = "\n\n" if definition.startswith("class") else "\n"
    put(path, f"{head}{found}{body}\n{gap}{text.rstrip()}\n\n{rest}")


def a_file_of_the_tree(folder: Path) -> str:
    test = folder / "tests/daemon/tree/test_instance_files.py"
    put(test, f"{test.read_text()}\n\n{code('test_nr_enabled')}")
    ftrace = folder / "daemon/utracefsd/consumers/ftrace"
    insert_behind(ftrace / "event/event_file.py", "    def set_event_text(", code("nr_enabled_text"))
    (row,) = re.findall(r'`(Row\(b"nr_enabled".*?\),)`', PAGE)
    insert(folder / "daemon/utracefsd/tree/instance_files.py", 'Row(b"free_buffer"', f"    {row}\n")
    return "tests/daemon/tree/test_instance_files.py::test_nr_enabled"


def an_exporter(folder: Path) -> str:
    put(folder / "client/utracefs/export/tsv.py", code("write_tsv"))
    package = folder / "client/utracefs/export/__init__.py"
    put(package, f"{package.read_text()}\nfrom utracefs.export.tsv import write_tsv  # noqa: E402\n")
    command = folder / "client/utracefs/cli/convert/export.py"
    insert(command, "    write_trace_dat,", "    write_tsv,\n")
    (row,) = re.findall(r'`(Format\("tsv".*?\),)`', PAGE)
    insert(command, 'Format("csv"', f"        {row}\n")
    put(folder / "tests/client/export/test_tsv.py", code("test_all_records"))
    return "tests/client/export/test_tsv.py"


def a_message(folder: Path) -> str:
    insert(folder / "docs/protocol.md", "| `stat` |", "| `exists` | `[path]` | bool |\n")
    messages = folder / "protocol/utracefs_protocol/messages/tracefs.py"
    insert_behind(messages, "class StatPath(", code("Exists"))
    connection = folder / "daemon/utracefsd/connections/tracefs_connection.py"
    insert_behind(connection, "    def _list_dir(", code("_exists"))
    (row,) = re.findall(r"`(messages\.Exists: .*?)`", PAGE)
    insert(connection, "messages.StatPath: ", f"    {row},\n")
    insert_behind(folder / "client/utracefs/tree/tracefs.py", "    def stat(", code("exists"))
    test = folder / "tests/protocol/messages/test_tracefs.py"
    insert(test, "    Close,", "    Exists,\n")
    (case,) = re.findall(r"`(\(Exists\(.*?\]\))`", PAGE)
    insert(test, '(StatPath(b"trace"), ', f"        {case},\n")
    return "tests/protocol/messages/test_tracefs.py::test_there_and_back"


def a_consumer(folder: Path) -> None:
    """As pip installs it."""
    (point,) = re.findall(r'\.longest = "(.*)"', PAGE)
    about = folder / "utracefs_longest-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: utracefs-longest\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[utracefs.consumers]\nlongest = {point}\n")
    (folder / f"{point.partition(':')[0]}.py").write_text(code("Longest"))


PROGRAM = """
import time, utracefs

hello = utracefs.event("hello u32 number")
while not (hello.registered and hello):
    time.sleep(0.01)
hello.emit(7)
"""
THE_NEW_MESSAGE = """
from utracefs.tree.tracefs import Tracefs

with Tracefs() as tree:
    assert tree.exists("trace") and not tree.exists("no/file")
"""


def test_the_recipes(tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    copy(folder)
    tests = [a_file_of_the_tree(folder), an_exporter(folder), a_message(folder)]
    a_consumer(tmp_path / "longest")
    below = [folder / name for name in ("protocol", "client", "daemon")]
    paths = os.pathsep.join(map(str, [*below, tmp_path / "longest"]))
    env = {**os.environ, "PYTHONPATH": paths, "UTRACEFS_DIR": str(tmp_path / "d")}

    def run(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, *words],
            cwd=folder,
            env=env,
            text=True,
            capture_output=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert re.search(r"\b\d+ passed", run("-m", "pytest", "-q", "-p", "no:cacheprovider", *tests))
    out = tmp_path / "trace.tsv"
    run("-m", "utracefs", "record", "-o", str(out), "--", sys.executable, "-c", PROGRAM)
    assert out.read_text().split("\t")[1:] == ["hello", '{"number":7}\n']
    run("-m", "utracefs", "daemon", "--background")
    try:
        run("-c", THE_NEW_MESSAGE)
        assert run("-m", "utracefs", "attach", "longest", "--", sys.executable, "-c", PROGRAM) == "hello 4\n"
    finally:
        run("-m", "utracefs", "daemon", "--stop")
