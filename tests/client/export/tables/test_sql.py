"""Tables of DuckDB beside the records that they are made of; names; what a query cannot reach."""

import json
from pathlib import Path
from typing import Any

import pytest

import utracefs
from tests.client.export.example import EVENTS, name, write
from tests.client.recordings.columns import expected
from tests.client.recordings.events import Events
from tests.client.recordings.trace_dat import example
from tests.judges import library
from utracefs.export import write_parquet, write_parquet_file
from utracefs.export.common import plain
from utracefs.export.tables.sql import Tables, open_tables, quoted
from utracefs_protocol.errors import TraceError
from utracefs_protocol.text import clean

duckdb = library("duckdb")
pa = library("pyarrow")
pq = library("pyarrow.parquet")

NAMES = [name(number) for number in EVENTS.declared]


def ask(tables: Tables, query: str) -> list[dict[str, Any]]:
    connection = tables.connect(query)
    try:
        connection.execute(query)
        names = [column for column, *_ in connection.description]
        return [dict(zip(names, row, strict=True)) for row in connection.fetchall()]
    finally:
        connection.close()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write(tmp_path / "t.dat", lost=5)


@pytest.fixture(params=["trace.dat", "directory", "file"])
def source(request: pytest.FixtureRequest, file: Path, tmp_path: Path) -> Path:
    """The same records in each kind of input; a Parquet file has `ints` alone."""
    if request.param == "trace.dat":
        return file
    with utracefs.open(file) as recording:
        if request.param == "directory":
            write_parquet(recording, tmp_path / "out")
            return tmp_path / "out"
        with (tmp_path / "p").open("wb") as out:
            write_parquet_file(recording, out, event="ints")
    return tmp_path / "p"


def test_every_field_of_every_record(source: Path, file: Path) -> None:
    with utracefs.open(file) as recording, open_tables(source) as tables:
        for event in NAMES if source.name != "p" else ["ints"]:
            for place in (f"user_events.{quoted(event)}", quoted(event)):
                rows = ask(tables, f"FROM {place} ORDER BY time_ns")
                wanted = expected(recording, event)
                for row in rows:
                    assert (row.pop("day", None) is None) == (source.name != "out")
                    row.pop("host", None)
                    row.pop("lost")
                assert rows == [{k: v for k, v in row.items() if k != "lost"} for row in wanted]


def test_records_of_all_events(source: Path, file: Path) -> None:
    is_parquet = not source.suffix
    with utracefs.open(file) as recording, open_tables(source) as tables:
        rows = ask(tables, "FROM records ORDER BY time_ns")
        records = [r for r in recording if source.name != "p" or r.name == "ints"]
        assert len(rows) == len(records)
        for row, r in zip(rows, records, strict=True):
            assert (row["time_ns"], row["cpu"], row["pid"], row["tid"]) == (r.time_ns, r.cpu, r.pid, r.tid)
            assert (row["comm"], row["instance"]) == (clean(r.comm), "")
            assert (row["system"], row["name"]) == (r.system, r.name)
            fields = {clean(key): plain(value) for key, value in r.fields.items()}
            assert json.loads(row["fields"]) == fields
        if not is_parquet:
            assert [row["lost"] for row in rows] == [r.lost for r in records]
        assert ask(tables, "SELECT fields->>'h' AS h FROM records WHERE name = 'ints' ORDER BY time_ns") == [
            {"h": "18446744073709551615"},
            {"h": "9223372036854775808"},
        ]


def test_a_table_is_read_as_often_as_a_query_names_it(file: Path) -> None:
    with open_tables(file) as tables:
        rows = ask(tables, "SELECT b.size, d.usec FROM begin b JOIN done d USING (key), begin c")
        assert [row["usec"] for row in rows] == [1500, 1500]


def test_only_the_tables_that_a_query_names_are_read(file: Path) -> None:
    with open_tables(file) as tables:
        for table in tables.events:
            if table.name != "done":
                table.sources[0].scanned.batches = None  # to read it would fail
        assert ask(tables, "SELECT count(*) AS n FROM done") == [{"n": 1}]
        with pytest.raises((duckdb.Error, RuntimeError)):
            ask(tables, "SELECT count(*) FROM begin")


FORMAT = b"name: %s\nID: %d\nformat:\n\tfield:u32 n;\toffset:8;\tsize:4;\tsigned:0;\n"


def named(path: Path, *events: tuple[bytes, bytes]) -> Path:
    """Events with a field n, which numbers them; a record of each."""
    formats: dict[bytes, list[bytes]] = {}
    records = []
    for number, (system, event) in enumerate(events):
        formats.setdefault(system, []).append(FORMAT % (event, 100 + number))
        entry = (100 + number).to_bytes(2, "little") + bytes(6) + number.to_bytes(4, "little")
        records.append((number, entry))
    return example.write(path, [example.pages(records)], formats=formats)


def test_names(tmp_path: Path) -> None:
    events = [
        (b"a", b"ev"),
        (b"b", b"ev"),
        (b"b", b"EV"),
        (b"A", b"other"),
        (b"main", b"records"),
        (b"temp", b"x"),
        (b"select", b"q\"u'o;te"),
        (b"a", b"table"),
        (b"a", b"\xff\xfe"),
        (b"a", b"__0"),
        (b"a", b"__Records"),
    ]
    with open_tables(named(tmp_path / "t", *events)) as tables:
        found = {
            place: ask(tables, f"SELECT n FROM {place}")
            for place in (
                "a.ev",
                "b.ev",
                "b.EV_",
                '"A_".other',
                "other",
                "main_.records",
                "temp_.x",
                "x",
                '"select"."q""u\'o;te"',
                '"q""u\'o;te"',
                '"table"',
                '"\ufffd\ufffd"',
                "__0",
                "__records",
            )
        }
        assert [row["n"] for (row,) in found.values()] == [0, 1, 2, 3, 3, 4, 5, 5, 6, 6, 7, 8, 9, 10]
        with pytest.raises(duckdb.CatalogException, match=r"Did you mean"):
            ask(tables, "FROM ev")
        assert ask(tables, "SELECT count(*) AS n FROM records") == [{"n": len(events)}]
    with utracefs.open(tmp_path / "t") as recording:
        write_parquet(recording, tmp_path / "out")
    with open_tables(tmp_path / "out") as tables:
        assert ask(tables, "SELECT count(*) AS n FROM records") == [{"n": len(events)}]
        rows = ask(tables, "SELECT name FROM records WHERE fields->>'n' = '6'")
        assert rows == [{"name": "q\"u'o;te"}]


def test_fields_that_differ_in_case_alone(tmp_path: Path) -> None:
    events = Events(5, b"ev u32 a; u32 A; u32 CPU; u32 host; u32 from")
    path = example.write(
        tmp_path / "t",
        [example.pages([(1, events.entry(5, 1, 1, 2, 3, 4, 5))])],
        formats={b"s": events.formats()},
    )
    with open_tables(path) as tables:
        rows = ask(tables, 'SELECT a, field_A, field_CPU, host, "from" FROM ev')
        assert [list(row.values()) for row in rows] == [[1, 2, 3, 4, 5]]
    with utracefs.open(path) as recording:
        write_parquet(recording, tmp_path / "out")
    with open_tables(tmp_path / "out") as tables:
        rows = ask(tables, 'SELECT a, field_A, field_CPU, field_host, "from", host FROM ev')
        assert [list(row.values()) for row in rows] == [[1, 2, 3, 4, 5, "unknown"]]


def test_of_many_events_those_that_a_query_names(tmp_path: Path) -> None:
    events = [(b"s", b"ev%d" % n) for n in range(300)]
    with open_tables(named(tmp_path / "t", *events)) as tables:
        assert ask(tables, "SELECT n FROM EV299") == [{"n": 299}]
        assert ask(tables, "SELECT count(*) AS n FROM records") == [{"n": 300}]
        connection = tables.connect()
        assert len(connection.execute("SHOW TABLES").fetchall()) >= 300
        connection.close()


@pytest.mark.parametrize(
    "query",
    [
        "COPY ints TO '{0}/stolen.csv'",
        "SELECT * FROM read_text('/etc/passwd')",
        "SELECT * FROM '{0}/t.dat'",
        "SELECT * FROM glob('{0}/*')",
        "ATTACH '{0}/x.db'",
        "EXPORT DATABASE '{0}/x'",
        "SET enable_external_access = true",
        "COPY (SELECT 1) TO ':memory:' (FORMAT csv)",
        "SELECT * FROM read_blob(':memory:')",
        "CALL enable_logging(storage='file', storage_config={{'path': 'logs'}})",
        "SET max_expression_depth = 1000000",
        "SET lock_configuration = false",
        "INSTALL httpfs",
        "LOAD httpfs",
        "FROM recording",
    ],
)
def test_a_query_reaches_nothing_else(file: Path, query: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file.parent)
    with open_tables(file) as tables, utracefs.open(file) as recording:
        assert recording.path
        with pytest.raises(duckdb.Error):
            ask(tables, query.format(file.parent))
    assert [path.name for path in file.parent.iterdir()] == ["t.dat"]


def test_what_is_no_input(tmp_path: Path, file: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "text").write_text("hello")
    (tmp_path / "cut").write_bytes(b"PAR1 and so on")
    for word, message in (
        ("empty", "has no Parquet file of utracefs export; DuckDB itself reads those of forward"),
        ("text", "neither a trace.dat nor a perf.data"),
        ("cut", "broken: "),
    ):
        with pytest.raises(TraceError, match=message), open_tables(tmp_path / word):
            pass
    with utracefs.open(file) as recording:
        table = recording.to_arrow("ints").replace_schema_metadata(None)
    pq.write_table(table, tmp_path / "other")
    with pytest.raises(TraceError, match="has no Parquet file of utracefs"), open_tables(tmp_path / "other"):
        pass
    with pytest.raises(FileNotFoundError), open_tables(tmp_path / "nosuch"):
        pass


@pytest.mark.parametrize(
    ("place", "more", "told", "says"),
    [
        ("p.parquet", {}, {"event": "ev"}, "no Parquet file of utracefs"),
        ("p.parquet", {"cpu": None}, {"event": "ev", "system": "s"}, "columns are not those of utracefs"),
        ("p.parquet", {"Cpu": [0]}, {"event": "ev", "system": "s"}, "columns are not those of utracefs"),
        ("day=yesterday/p.parquet", {}, {"event": "ev", "system": "s"}, "error parsing 'yesterday'"),
    ],
)
def test_parquet_of_others(
    tmp_path: Path, place: str, more: dict[str, Any], told: dict[str, str], says: str
) -> None:
    table: dict[str, Any] = {key: [1] for key in ("time_ns", "cpu", "pid", "tid", "lost")}
    table |= {"comm": ["a"], "instance": [""], **more}
    file = tmp_path / "in" / place
    file.parent.mkdir(parents=True)
    made = pa.table({name: values for name, values in table.items() if values})
    pq.write_table(made.replace_schema_metadata({f"utracefs.{k}": v for k, v in told.items()}), file)
    with pytest.raises(TraceError, match=says), open_tables(tmp_path / "in"):
        pass


def test_several_inputs(source: Path, file: Path, tmp_path: Path) -> None:
    """A column says which; of tables that only one has, too, and where a field is called as the column."""
    events = Events(300, b"ints s8 a; u32 later", b"mine u32 file")
    pages = example.pages([(1, events.entry(300, 5, 7, 8)), (2, events.entry(301, 5, 9))])
    other = example.write(tmp_path / "o.dat", [pages], formats={b"user_events": events.formats()})
    with open_tables(source, other, source) as tables:
        assert tables.files == [str(source), str(other)]
        query = "SELECT file, count(*) AS n, sum(later)::INT AS later FROM ints GROUP BY ALL ORDER BY n DESC"
        assert ask(tables, query) == [
            {"file": str(source), "n": 2, "later": None},
            {"file": str(other), "n": 1, "later": 8},
        ]
        assert ask(tables, "SELECT field_file, file FROM mine") == [{"field_file": 9, "file": str(other)}]
        found = ask(tables, "SELECT file, fields->>'a' AS a FROM records WHERE name = 'ints' ORDER BY ALL")
        assert sorted((row["file"], row["a"]) for row in found) == sorted(
            [(str(source), "-128"), (str(source), "1"), (str(other), "7")]
        )
