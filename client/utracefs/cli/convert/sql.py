"""`utracefs sql`: query a recording in SQL."""

import contextlib
import csv
import functools
import io
import itertools
import json
import math
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from utracefs.cli import COMMAND_SETTINGS, Failure
from utracefs.cli.common import tell, with_extras
from utracefs.cli.convert.conversion import raw_eventheader_option
from utracefs.cli.tables import table_lines
from utracefs.export.common import json_text
from utracefs.export.tables.sql import RECORDS, Tables, open_tables, quoted
from utracefs.recordings._columns import COMMON_COLUMNS
from utracefs.recordings.columns import library
from utracefs_protocol.text import visible

if TYPE_CHECKING:
    import duckdb


T = TypeVar("T")

_SHOW_TABLES: Final = re.compile(r"\s*show\s+(all\s+)?tables[\s;]*", re.IGNORECASE)
_ROWS_AT_ONCE: Final = 2000
_MOST_SHOWN: Final = 10_000
"""Maximum of rows of a printed table: its layout needs all rows."""


@click.command(context_settings=COMMAND_SETTINGS)
@click.argument("words", metavar="INPUT... [QUERY]", nargs=-1, required=True)
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV, with a row of names.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a row.")
@click.option("--recover", is_flag=True, help="Read as much as possible of a broken file.")
@raw_eventheader_option()
def sql(words: tuple[str, ...], as_csv: bool, as_json: bool, recover: bool, raw_eventheader: bool) -> None:
    """Query INPUT (trace.dat, perf.data, or Parquet of `utracefs export`) in the SQL of DuckDB.

    Each event is a table: the columns of `records` up to `lost`, and its fields. `records` has the records of
    all events. With several inputs the columns `host` and `file` say where a record is from. Without QUERY:
    lists the tables.

    \b
      utracefs sql trace.dat "select status, count(*) from http_request group by all"
    """
    if as_csv and as_json:
        raise click.UsageError("--csv or --json, not both")
    has_query = len(words) > 1 and not os.path.exists(words[-1])
    files, query = (words[:-1], words[-1]) if has_query else (words, None)
    if query is not None and not query.strip(" ;\n\t"):
        raise click.UsageError("QUERY is empty")
    if query is None and " " in words[0].strip() and not os.path.exists(words[0]):
        raise click.UsageError("INPUT comes first: utracefs sql trace.dat QUERY")
    with with_extras("sql"), open_tables(*files, recover=recover, raw_eventheader=raw_eventheader) as tables:
        for note in tables.notes:
            tell(note)
        write = _write_csv if as_csv else _write_json if as_json else _write_table
        shows = query is not None and _SHOW_TABLES.fullmatch(query)  # DuckDB would list our parts, too
        with contextlib.closing(tables.connect(None if shows else query)) as connection, _plainly(tables):
            if shows:
                names = dict.fromkeys(name for name, _, _ in _tables(tables, connection))
                write([("name", "VARCHAR")], ((name,) for name in names))
                return
            if query is None:
                columns = [(name, "VARCHAR") for name in ("table", "column", "type")]
                write(columns, _tables(tables, connection))
                return
            _interruptible(connection, functools.partial(connection.execute, query))
            columns = [(name, str(kind)) for name, kind, *_ in connection.description or ()]
            if columns:
                write(columns, _rows(connection))


def _tables(tables: Tables, connection: "duckdb.DuckDBPyConnection") -> Iterator[tuple[str, str, str]]:
    """Each column of each table, in the spelling for queries; tables of events without the common columns."""
    reserved = {
        word
        for (word,) in connection.execute(
            "SELECT keyword_name FROM duckdb_keywords() WHERE keyword_category = 'reserved'"
        ).fetchall()
    }

    def written(name: str) -> str:
        is_word = re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name) and name.lower() not in reserved
        return name if is_word else quoted(name)

    names = [
        written(table.name) if table.is_alone else f"{written(table.schema)}.{written(table.name)}"
        for table in sorted(
            tables.events, key=lambda table: (table.schema == "ftrace", table.schema, table.name)
        )
    ]
    for name in [RECORDS, *names] if names else []:
        for column, kind, *_ in connection.execute(f"DESCRIBE {name}").fetchall():
            if name == RECORDS or column not in COMMON_COLUMNS:
                yield name, written(column), kind


@contextlib.contextmanager
def _plainly(tables: Tables) -> Iterator[None]:
    """DuckDB's error in one line; errors of the recording as in other commands."""
    duckdb = library("duckdb")
    try:
        yield
    except (duckdb.Error, RuntimeError, OverflowError) as error:
        if tables.failures:
            raise tables.failures[0] from None
        if isinstance(error, OverflowError):
            raise Failure("", f"a value is out of Python's range ({error}): cast it to VARCHAR") from None
        text = " ".join(str(error).partition("\n\nLINE ")[0].split())
        if text.startswith("Catalog Error: Table "):
            text += " Without QUERY, `utracefs sql` lists the tables"
        raise Failure("", text) from None


def _rows(connection: "duckdb.DuckDBPyConnection") -> Iterator[tuple[Any, ...]]:
    fetch = functools.partial(connection.fetchmany, _ROWS_AT_ONCE)
    while rows := _interruptible(connection, fetch):
        yield from rows


def _interruptible(connection: "duckdb.DuckDBPyConnection", call: Callable[[], T]) -> T:
    """Make a call that Ctrl-C ends: DuckDB itself ignores signals while it works."""
    with ThreadPoolExecutor(1) as thread:
        future = thread.submit(call)
        try:
            return future.result()
        except KeyboardInterrupt:
            connection.interrupt()
            raise


def _write_table(columns: Sequence[tuple[str, str]], rows: Iterator[tuple[Any, ...]]) -> None:
    lines = [[_shown(name) for name, _ in columns]]
    lines += [[_shown(value) for value in row] for row in itertools.islice(rows, _MOST_SHOWN)]
    numbers = ("INT", "DOUBLE", "FLOAT", "DECIMAL")
    left = {at for at, (_, kind) in enumerate(columns) if not any(word in kind for word in numbers)}
    for line in table_lines(lines, left=left):
        click.echo(line)
    if next(rows, None) is not None:
        tell(f"the first {_MOST_SHOWN} rows; --csv and --json print all")


def _shown(value: Any) -> str:
    """For people: without control characters."""
    if value is None:
        return "NULL"
    return visible(value.hex() if isinstance(value, bytes) else str(value))


def _write_csv(columns: Sequence[tuple[str, str]], rows: Iterator[tuple[Any, ...]]) -> None:
    """Like `utracefs export`: absent values are empty, bytes in hex."""
    text = io.TextIOWrapper(sys.stdout.buffer, "utf-8", newline="", write_through=False)
    try:
        writer = csv.writer(text, lineterminator="\r\n")
        writer.writerow([name for name, _ in columns])
        for row in rows:
            writer.writerow(["" if v is None else v.hex() if isinstance(v, bytes) else v for v in row])
    finally:
        text.flush()
        text.detach()


def _write_json(columns: Sequence[tuple[str, str]], rows: Iterator[tuple[Any, ...]]) -> None:
    """Rename duplicate columns: the second is NAME_2."""
    names: list[str] = []
    for name, _ in columns:
        number, new = 2, name
        while new in names:
            number, new = number + 1, f"{name}_{number}"
        names.append(new)
    is_json = [kind == "JSON" for _, kind in columns]
    out = sys.stdout.buffer
    for row in rows:
        values = [
            _plain(json.loads(value) if as_is and value is not None else value)
            for value, as_is in zip(row, is_json, strict=True)
        ]
        out.write(json_text(dict(zip(names, values, strict=True))).encode() + b"\n")
    out.flush()


def _plain(value: Any) -> Any:
    """For JSON: values of unsupported types as text, also `NaN` and `Infinity`, as in exports."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value).replace("nan", "NaN").replace("inf", "Infinity")
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    return value.isoformat() if hasattr(value, "isoformat") else str(value)
