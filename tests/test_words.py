"""The English of comments, docstrings, Markdown, help and errors: phrases that need a second reading.

A file is searched as a whole, code included: identifiers have no blanks. A phrase may run over a line break.
"""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SUFFIXES = (
    *(".py", ".pyx", ".pxd", ".pyi", ".h", ".hpp", ".c", ".cpp"),
    *(".js", ".css", ".html", ".md", ".service", ".socket", ".conf"),
)
WIDEST_MARKDOWN = 100

GAP = r"[\s#*/]+"
BE = r"(?:is|are|was|were|be|been|being)"
PHRASES = [
    rf"{BE} told(?! apart)",  # is reported, is notified
    rf"{BE} asked(?! for)",  # things as people
    r"who(?:m)?ever",
    r"those (?:that|who)",
    r"of (?:ours|theirs)",
    r"(?:go|goes|going|went) on(?! to)(?! and off)",  # continues
    r"stands?(?! for)(?! in for)",  # is
    r"as (?:it|they) (?:is|are|was|were)(?=[.,:;)])",  # unchanged
    r"(?:comes?|came) by",
    r"(?<!not\s)at all(?! of)(?! the)",
    r"and nothing else",
    r"(?:forgives?|forgiven|forgiving)",
    r"(?:let in|let through)",  # accepted
    r"deeds?",  # job
]
SENTENCE = r"(?:\"\"\"|[.:;]\s+(?:(?:#:?|//|\*|-) )?|^[ \t]*(?:#:?|//|\*|/\*|/\*\*|-) )"
FORBIDDEN = re.compile(
    "|".join(
        [
            r"(?i:\b(?:" + "|".join(p.replace(" ", GAP) for p in PHRASES) + r")\b)",
            # "What the reader has not taken yet": a relative clause as a noun.
            SENTENCE + r"(?:What|Who|Whose)\b(?![^.?|]{0,200}\?)",
            # A docstring whose subject is only in the name above it: "Of a request." of MAX_RECORDS.
            r"\"\"\"(?:Of|That)\b",
        ]
    ),
    re.MULTILINE,
)

NOT_YET = [
    "tests/test_words.py",
]
"""Files and folders that are not searched yet. Remove rows; add none."""


TOLD = r"_told(?!_apart)|_stands?(?!_for)|_go(?:es)?_on|_of_ours|_as_it_is|_as_they_are(?=\()"
NAMES = re.compile(rf"\bdef (test_(?:who_\w+|\w*(?:{TOLD})))(?:_\w+)?\(")
"""The same in names of tests."""


def made(path: Path) -> bool:
    """Whether a build writes the file."""
    inside = path.relative_to(ROOT).parts
    return (
        inside[:3] in [("client", "c", "build"), ("client", "utracefs", "c")]
        or (
            path.suffix == ".c"
            and inside[0] in ("protocol", "client", "daemon")
            and inside[:2] != ("client", "c")
        )
        or any(part.startswith(".") or part in ("build", "site") for part in inside)
    )


def waits(path: Path) -> bool:
    return any(path.is_relative_to(ROOT / row) for row in NOT_YET)


def sources() -> list[Path]:
    # utracefs-VERSION is there while another test makes a source distribution.
    others = (".", "build", "utracefs-")
    top = [path for path in ROOT.iterdir() if not path.name.startswith(others)]
    found = [p for one in top for p in ([one] if one.is_file() else one.rglob("*"))]
    return sorted(p for p in found if p.suffix in SUFFIXES and not waits(p) and not made(p) and p.is_file())


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("what the ring goes\n    # on with", "goes\n    # on"),
        ('"""What is left."""', '"""What'),
        ("the reader is told about it", "is told"),
        ("three. Who reads waits", ". Who"),
        ('MOST = 5\n"""Of a request."""', '"""Of'),
        ("files as they are.", "as they are"),
        ("What is lost? Nothing. It is read as it is written, or not at all", None),
        ("`!` stands for not; the two cannot be told apart", None),
    ],
)
def test_the_phrases(text: str, found: str | None) -> None:
    match = FORBIDDEN.search(text)
    assert (match and match[0]) == found


def test_plain_english() -> None:
    found = []
    for path in sources():
        text = path.read_text()
        for match in FORBIDDEN.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            found.append(f"{path.relative_to(ROOT)}:{line}: {' '.join(match[0].split())}")
    assert not found, "\n".join(found)


def test_names_of_tests() -> None:
    assert NAMES.search("def test_it_goes_on(") and NAMES.search("def test_who_asks_is_told_of(")
    assert not NAMES.search("def test_the_two_are_told_apart(")
    found = [f"{path}: {name}" for path in sources() for name in NAMES.findall(path.read_text())]
    assert not found, "\n".join(found)


def test_markdown_is_narrow() -> None:
    """Tables, code and addresses may be wider."""
    wide = []
    for path in sources():
        if path.suffix == ".md":
            code = False
            for n, line in enumerate(path.read_text().splitlines(), 1):
                code ^= line.lstrip().startswith("```")
                prose = " " in line.strip() and not line.startswith(("|", "    "))
                if len(line) > WIDEST_MARKDOWN and prose and not code:
                    wide.append(f"{path.relative_to(ROOT)}:{n}")
    assert not wide, "\n".join(wide)
