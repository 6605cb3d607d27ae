"""A definition for an event, in a line of a test."""

from __future__ import annotations

from typing import Any

from utracefs_protocol.events.declaration import Declaration, parse
from utracefs_protocol.hist.errors import Log
from utracefs_protocol.hist.parse import parse_parts
from utracefsd.consumers.ftrace.hist._hist import Entries, Hist, HistTable
from utracefsd.consumers.ftrace.hist.definition import Definition, define
from utracefsd.consumers.ftrace.hist.program import compile_definition
from utracefsd.consumers.ftrace.hist.text import hist_pieces
from utracefsd.consumers.ftrace.hist.variables import Context

EVENT = parse(b"h u32 id; s32 sv; u64 big; char[12] name; __rel_loc char[] msg; u8 small; u16 sz")


class NoVariables:
    """An instance without other triggers, and without synthetic events."""

    reference: Any = lambda *_: None
    field_variable = synthetic = reference
    is_defined: Any = lambda *_: False
    event_exists = is_defined


def context_of(event: Declaration, log: Log, variables: Any = None) -> Context:
    none: Any = NoVariables()
    return Context(event.fields, log, variables or none)


def defined(text: bytes, event: Declaration = EVENT, variables: Any = None) -> Definition:
    """HistError."""
    log = Log(b"hist:" + text)
    return define(parse_parts(text, log), context_of(event, log, variables))


def hist_of(definition: Definition, path: str | None = None) -> Hist:
    program = compile_definition(definition)
    table = HistTable.create(definition.parts.bits, definition.key_size, 1 + len(definition.values), path)
    return Hist(program, table)


def text_of(definition: Definition, hist: Hist) -> bytes:
    line = definition.text() + b" [active]\n"
    return b"".join(hist_pieces(definition, Entries(hist.table), line, lambda pid: b"task-%d" % pid))
