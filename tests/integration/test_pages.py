"""README.md and the pages for users: every block of code is run, or a comment says why not.

tools/test_tutorial.py, tools/test_kernel_abi_page.py, and test_recipes.py for spans.md, run the others.
"""

import re
import shlex
from pathlib import Path

import click
import pytest

from tests.integration.pages import blocks, commands, play
from tests.integration.tools.console import Shell, files, prepare
from tests.judges import judge, library
from utracefs.cli import cli
from utracefs.forward.policy import Policy
from utracefs.tree.event_names import EventName

ROOT = Path(__file__).parents[2]
NOT_RUN = {
    "README.md": 6,
    "docs/bpftrace.md": 3,
    "docs/c-client.md": 1,
    "docs/exports.md": 1,
    "docs/fleet.md": 5,
    "docs/forward.md": 10,
    "docs/kernel-abi.md": 7,
    "docs/monitoring.md": 1,
    "docs/operations.md": 9,
    "docs/spans.md": 5,
    "docs/tutorial.md": 0,
}
"""How many marks `not run` each page has. Fewer are better."""
TEXTS = {page: (ROOT / page).read_text() for page in NOT_RUN}
APP = """
import utracefs

request = utracefs.event("http_request u16 status; u32 usec; __rel_loc char[] path")
order = utracefs.event("shop_order u32 number")
for number in range(200):
    request.emit(200 if number % 10 else 500, 200_000 if number == 77 else 10, "/")
    order.emit(number)
"""
MORE_EVENTS = """
begin = utracefs.event("http_begin u64 request")
done = utracefs.event("http_done u64 request; u32 usec; __rel_loc char[] path")
failed = utracefs.event("http_failed u64 request; u32 usec; __rel_loc char[] path")
plain = utracefs.events(["begin u32 key", "done u32 key"])
queue = utracefs.event("queue s32 length")
query = utracefs.event("db_query u32 usec")

for number in range(200):
    queue.emit(number)
    begin.emit(number)
    plain[0].emit(number)
    query.emit(5)
    (done if number % 10 else failed).emit(number, 10, "/")
    plain[1].emit(number)
"""


def test_how_blocks_are_read() -> None:
    page = (
        "x\n\n<!-- before: a b\n c -->\n<!-- not run (d): e -->\n\n    one  # 1\n      two\n\n    dd\n\ny\n"
        "<!-- not run: f -->\n```python\n# a.py\n\n```\n```sql\nselect\n```\n"
    )
    first, second, third = blocks(page)
    assert (first.kind, first.line, list(commands(first.text))) == ("indented", 7, ["one  # 1\n  two", "dd"])
    assert first.texts("before") == ["a b c"] and first.is_run
    assert [first.left_out(one) for one in commands(first.text)] == [False, True]
    assert (second.kind, second.name, second.is_run) == ("python", "a.py", False)
    assert (third.kind, third.text, third.marks) == ("sql", "select\n", ())


@pytest.mark.parametrize("page", NOT_RUN)
def test_every_block_is_run_or_says_why_not(page: str) -> None:
    found = blocks(TEXTS[page])
    assert len(found) == len(re.findall(r"^```\w", TEXTS[page], re.MULTILINE)) + sum(
        one.kind == "indented" for one in found
    )
    marks = [mark for one in found for mark in one.marks]
    assert len(marks) == TEXTS[page].count("<!--")  # each belongs to a block
    reasons = [text for word, _, text in marks if word == "not run"]
    assert len(reasons) == NOT_RUN[page] and all(len(reason) > 5 for reason in reasons)
    for named in re.findall(r"tests/[\w/.]+", " ".join(reasons)):
        assert (ROOT / named.rstrip(".")).exists(), named
    for block in found:
        assert block.kind in ("console", "indented", "python", "sql", "c", "c++", "toml"), block
        if block.kind in ("c", "c++", "toml"):
            assert block.name, block
        for word, prefix, text in block.marks:
            used = {"not run": prefix, "ends by Ctrl-C": text}.get(word, "")
            lines = [" ".join(one.split()) for one in commands(block.text)]
            assert not used or block.kind == "python" or any(one.startswith(used) for one in lines), block


@pytest.mark.parametrize(
    "page",
    [
        *(
            "README.md",
            "docs/bpftrace.md",
            "docs/c-client.md",
            "docs/exports.md",
            "docs/forward.md",
            "docs/monitoring.md",
        ),
        *("docs/operations.md", "docs/spans.md"),
    ],
)
@pytest.mark.timeout(600)
def test_every_block_of_the_page(page: str, page_folder: Path) -> None:
    if page in ("README.md", "docs/exports.md"):
        for name in ("duckdb", "pyarrow", "pandas"):
            library(name)
        judge("trace-cmd")
    if page in ("README.md", "docs/bpftrace.md"):
        judge("bpftrace")
    env = {**prepare(TEXTS[page], page_folder), "UTRACEFS_DIR": str(page_folder / "d")}
    (page_folder / "app.py").write_text(APP + (MORE_EVENTS if page == "docs/exports.md" else ""))
    (page_folder / "provider.c").write_text(files(TEXTS["docs/kernel-abi.md"])["provider.c"])
    (page_folder / "examples").symlink_to(ROOT / "examples")
    with Shell(page_folder, env) as shell:
        assert play(shell, page, TEXTS[page])
    assert not (page_folder / "d/tracefs").exists()  # the last daemon has ended


@pytest.mark.parametrize("page", ["docs/fleet.md", "docs/forward.md"])
def test_options_of_commands_for_servers(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UTRACEFS_FLEET", "nats://host")
    done = 0
    for block in blocks(TEXTS[page]):
        for line in commands(block.text) if block.kind == "indented" else ():
            words = shlex.split(line.replace(" ...", " --spool spool"))
            if words[0] != "utracefs":
                continue
            command: click.Command = cli
            context = click.Context(command)
            while isinstance(command, click.Group):
                command = command.get_command(context, words.pop(1)) or command
            command.make_context("utracefs", words[1:])
            done += 1
    assert done >= 2


@pytest.mark.parametrize("page", ["docs/fleet.md", "docs/forward.md"])
def test_policies(page: str, tmp_path: Path) -> None:
    (tmp_path / "policy.key").write_bytes(bytes(16))
    (tmp_path / "policy.toml").write_text(files(TEXTS[page])["policy.toml"])
    assert Policy.read(tmp_path / "policy.toml").allows(EventName("user_events", "http_request"))
