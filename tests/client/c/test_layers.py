"""The C client has layers: no file includes or calls one above it, so there is no cycle."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from tests.client.c.building import ROOT, SOURCE

LAYERS = """
    descriptor
    wire states connecting stream_reader stream_events
    target stream
    ring
    process
    connection.h
    registration warnings
    requests
    sending enable_bits
    connection.c
    thread
    session
    events.h
    emit enablers
    utracefs
    binding spans
"""
"""Lowest first. Files of one layer do not know each other."""
LEVEL = {name: level for level, names in enumerate(LAYERS.split("\n")) for name in names.split()}


def level_of(file: str) -> int:
    return LEVEL[file] if file in LEVEL else LEVEL[file.rpartition(".")[0]]


def sources() -> list[Path]:
    return [path for path in (SOURCE / "src").rglob("*.[ch]") if path.parent.name not in ("preload", "bpf")]


def test_every_file_has_a_layer_and_includes_only_those_below() -> None:
    own = {path.name: path for path in sources()}
    for name, path in own.items():
        for other in re.findall(r'^#include "(\w+\.h)"', path.read_text(), re.MULTILINE):
            if other in own and other != name[:-1] + "h":
                assert level_of(other) < level_of(name), f"{name} includes {other}"


def test_the_page_has_each_file_in_this_order() -> None:
    page = (
        (ROOT / "docs" / "c-client.md").read_text().partition("## How it is built")[2].partition("\n## ")[0]
    )
    rows = re.findall(r"^\| `(\w+)(\.[ch])?` \|", page, re.MULTILINE)
    files = [name + end for name, ending in rows for end in ([ending] if ending else [".c", ".h"])]
    assert sorted(files) == sorted(path.name for path in sources())
    levels = [level_of(file) for file in files]
    assert levels == sorted(levels)


def test_no_file_calls_one_above_it(built: Path) -> None:
    defined: dict[str, str] = {}
    used: list[tuple[str, str]] = []
    for path in sources():
        if path.suffix == ".c":
            names = subprocess.run(
                ["nm", built / f"{path.stem}.o"], capture_output=True, text=True, check=True
            ).stdout
            for kind, name in re.findall(r"^[\da-f ]{16} (\w) (\w+)$", names, re.MULTILINE):
                if kind == "U":
                    used.append((path.name, name))
                elif kind.isupper():
                    defined[name] = path.name
    calls = {(user, defined[name], name) for user, name in used if name in defined}
    assert len(calls) > 100
    for user, owner, name in calls:
        assert level_of(owner) < level_of(user), f"{user} calls {name} of {owner}"
