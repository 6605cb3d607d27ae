"""The code blocks of a page, and a player that runs all of them.

A block is fenced or indented by four blanks. By its kind:

    console              commands behind `$ `, each with its output (console.py)
    indented             commands: each must succeed; deeper lines belong to the one above
    python               a program; a first line `# name.py` makes it a file instead
    c, c++, toml         a file, named in its first line
    sql                  queries of the recording trace.dat

Comments in front of a block, which are not rendered, say how it is run:

    <!-- not run: REASON -->           none of it
    <!-- not run (PREFIX): REASON -->  not the commands that begin with PREFIX
    <!-- ends by Ctrl-C: PREFIX -->    such commands, or the program, run until SIGINT
    <!-- before: COMMAND -->           is run first
    <!-- after: COMMAND -->            is run behind it
"""

import re
import shlex
from collections.abc import Iterator

import attrs

from tests.integration.tools.console import NAMED, Shell, Step, steps

FENCED = r"^(?P<fence>```+)(?P<kind>[\w+]*)\n(?P<body>(?:.*\n)*?)(?P=fence)$"
INDENTED = r"(?<=\n\n)(?P<indented>(?: {4}.*\n|\n(?= {4}))+)"
BLOCK = re.compile(rf"{FENCED}|{INDENTED}", re.MULTILINE)
MARK = re.compile(
    r"<!-- (?P<word>not run|ends by Ctrl-C|before|after)(?: \((?P<prefix>[^)]*)\))?: (?P<text>.*?) -->",
    re.DOTALL,
)
INTERRUPTED = "timeout -s INT -k 60 2 "


@attrs.frozen
class Block:
    """A block of code, and the marks in front of it."""

    line: int
    kind: str
    """Language of a fence, or `indented`."""
    text: str
    marks: tuple[tuple[str, str, str], ...]
    """(word, prefix, text)."""

    @property
    def name(self) -> str | None:
        """Name of the file that the block is."""
        found = NAMED.match(self.text) if self.kind in ("python", "c", "c++", "toml") else None
        return found[1] if found else None

    @property
    def is_run(self) -> bool:
        return not any(word == "not run" and not prefix for word, prefix, _ in self.marks)

    def texts(self, word: str) -> list[str]:
        return [" ".join(text.split()) for found, _, text in self.marks if found == word]

    def left_out(self, command: str) -> bool:
        return any(word == "not run" and command.startswith(prefix) for word, prefix, _ in self.marks)

    def is_interrupted(self, command: str) -> bool:
        words = " ".join(command.split())
        return any(words.startswith(text) for text in self.texts("ends by Ctrl-C"))


def blocks(page: str) -> list[Block]:
    """All, in their order."""
    found = []
    for match in BLOCK.finditer(page):
        before = page[: match.start()].rstrip()
        marks = []
        while before.endswith("-->"):
            start = before.rindex("<!--")
            mark = MARK.fullmatch(before[start:])
            assert mark, before[start:]
            marks.append((mark["word"], mark["prefix"] or "", mark["text"]))
            before = before[:start].rstrip()
        text = match["body"] if match["indented"] is None else re.sub(r"(?m)^ {4}", "", match["indented"])
        kind = match["kind"] if match["indented"] is None else "indented"
        line = page.count("\n", 0, match.start()) + 1
        found.append(Block(line, kind, text, tuple(reversed(marks))))
    return found


def commands(text: str) -> Iterator[str]:
    """Deeper lines, and those behind a backslash, belong to the one above."""
    for found in re.finditer(r"^\S.*(?:\n[ \t]+.*)*", text, re.MULTILINE):
        yield found[0].strip()


def _play_one(shell: Shell, block: Block) -> Iterator[str]:
    """The commands of a block but `console`."""
    if block.kind == "python":
        wait = INTERRUPTED if block.texts("ends by Ctrl-C") else ""
        yield f"{wait}python -c {shlex.quote(block.text)}"
    elif block.kind == "sql":
        yield from (f"utracefs sql trace.dat {shlex.quote(query)}" for query in commands(block.text))
    else:
        assert block.kind == "indented", block
        for command in commands(block.text):
            if not block.left_out(command):
                wait = INTERRUPTED if block.is_interrupted(command) else ""
                yield wait + command


def play(shell: Shell, page: str, text: str) -> int:
    """Run all blocks that are no files; returns how many commands that were."""
    done = 0
    for block in blocks(text):
        if not block.is_run:
            continue
        own = _play_one(shell, block) if block.kind != "console" and block.name is None else []
        for command in [*block.texts("before"), *own]:
            done += _check(shell, page, block, command)
        if block.kind == "console":
            found = steps(f"```console\n{block.text}```\n")
            shell.play(page, (Step(block.line + one.line - 1, one.command, one.expected) for one in found))
            done += len(found)
        for command in block.texts("after"):
            done += _check(shell, page, block, command)
    return done


def _check(shell: Shell, page: str, block: Block, command: str) -> int:
    said = shell.run(f'{command}\necho "status $?"')
    status = int(said.rstrip("\n").rpartition("status ")[2])
    good = (0, 124) if command.startswith(INTERRUPTED) else (0,)
    assert status in good, f"{page}:{block.line}: {command}\nprinted:\n{said}"
    return 1
