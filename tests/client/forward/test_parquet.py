"""Parquet files: values, names, days, layouts; batches sent again, faults of the disk."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import struct
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest

from tests.client.export import example
from tests.client.forward import kit
from tests.client.recordings.events import Events
from tests.integration.pages import blocks
from tests.judges import library
from utracefs.forward import parquet
from utracefs.forward.batch import Batch
from utracefs.forward.losses import ANY, AWAY, RING, Loss
from utracefs.forward.parquet import COUNTS, JOURNAL, ParquetTarget
from utracefs.forward.target import Settings, open_target
from utracefs.recordings.origin import ClockPair

duckdb = library("duckdb")
pandas = library("pandas")
polars = library("polars")
dataset = library("pyarrow.dataset")
pyarrow = library("pyarrow")

DAY_NS = 86400 * 10**9
NOON = 20_000 * DAY_NS + DAY_NS // 2
FORWARDER = "0123456789abcdef"


def target(folder: Path, **options: str) -> ParquetTarget:
    """Its journal is beside the folder."""
    made = open_target(f"parquet:{folder}", Settings(options, directory=folder.parent))
    assert isinstance(made, ParquetTarget)
    return made


def raw(entry: bytes, time_ns: int = 1000) -> bytes:
    size = (24 + len(entry) + 7) // 8 * 8
    return struct.pack("<IHHQII", size, 0, 1, time_ns, 77, len(entry)) + entry.ljust(size - 24, b"\0")


def batch(
    sequence: int,
    events: Events,
    *records: tuple[int, Sequence[Any]],
    system: str = "user_events",
    times: Sequence[int] = (),
    clock: ClockPair | None = None,
    losses: Sequence[Loss] = (),
    **members: Any,
) -> Batch:
    """A batch of (event id, values). times: of the monotonic clock."""
    formats = dict(zip(events.declared, events.formats(), strict=True))
    return attrs.evolve(
        kit.batch(()),
        **{
            "forwarder": FORWARDER,
            "sequence": sequence,
            "host": "box",
            "clock": clock or ClockPair(1000, NOON, 3),
            "events": {id_: (system, formats[id_]) for id_, _ in records},
            "counts": Counter(f"{system}:{events.declared[id_].name.decode()}" for id_, _ in records),
            "losses": losses,
            "body": b"".join(
                raw(events.entry(id_, 7, *values), times[n] if times else 1000)
                for n, (id_, values) in enumerate(records)
            ),
            **members,
        },
    )


WORK = Events(5, b"work u32 a", b"other u32 a")


def work(sequence: int, *numbers: int, id_: int = 5, **members: Any) -> Batch:
    return batch(sequence, WORK, *((id_, (number,)) for number in numbers), **members)


def query(text: str) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = duckdb.execute(text).fetchall()
    return found


def numbers(folder: Path, event: str = "user_events:*", column: str = "a") -> list[Any]:
    event = event.replace(":", "%3A")
    if not list(folder.glob(f"event={event}/**/*.parquet")):
        return []
    files = f"read_parquet('{folder}/event={event}/**/*.parquet', union_by_name = true)"
    return [value for (value,) in query(f"select {column} from {files} order by 1")]


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir())


# Contents


def test_names_of_threads_and_statistics(tmp_path: Path) -> None:
    """Batches of one file have different ones. A file's name says nothing of how they are stored."""
    out = tmp_path / "out"
    batches = [work(1, 1, 2), work(2, 3, comms={7: "other"}), work(3, 4, comms={}), work(4, 5)]
    assert target(out).send(batches) == {}
    assert numbers(out, "user_events:work", "comm") == ["<...>", "main", "main", "main", "other"]
    (file,) = out.glob("event=user_events%3Awork/**/*.parquet")
    assert file.stem.endswith("-8003c847")
    group = pyarrow.parquet.ParquetFile(file).metadata.row_group(0)
    found = [group.column(n) for n in range(group.num_columns)]
    assert [c.path_in_schema for c in found if c.is_stats_set] == ["time", "time_ns", "pid", "tid", "a"]


def test_every_value(tmp_path: Path) -> None:
    """The types of the files are those of the fields. (Other readers: those of an export.)"""
    records = [(id_, list(values.values())) for _, id_, _, values in example.ROWS]
    made = batch(1, example.EVENTS, *records, times=[time for _, _, time, _ in example.ROWS])
    out = tmp_path / "out"
    assert target(out).send([made]) == {}
    types = {"a": "int8", "b": "uint8", "c": "int16", "d": "uint16", "e": "int32", "f": "uint32"}
    types |= {"g": "int64", "h": "uint64", "fixed": "string", "raw": "binary", "rel": "string"}
    types |= {"time": "timestamp[ns, tz=UTC]", "time_ns": "int64", "boot_id": "string", "forwarder": "string"}
    types |= {"three": "binary", "from": "binary", "cpu": "int32", "pid": "int32", "comm": "string"}
    for declared in example.EVENTS.declared.values():
        name = declared.name.decode()
        (file,) = out.glob(f"event=user_events%3A{name}/day=*/host=box/*.parquet")
        table = pyarrow.parquet.ParquetFile(file).read()
        for field in table.schema:
            assert str(field.type) == types.get(field.name, str(field.type)), (name, field)
        wanted: list[dict[str, Any]] = []
        for record in made:
            if record.name == name:
                own = {f"field_{n}" if n in ("cpu", "time_ns") else n: v for n, v in record.fields.items()}
                own = {n: example.shown(v) if isinstance(v, str) else v for n, v in own.items()}
                common = (record.time_ns, "boot", FORWARDER, record.cpu, record.pid, record.tid, record.comm)
                first = ("time_ns", "boot_id", "forwarder", "cpu", "pid", "tid", "comm")
                wanted.append(dict(zip(first, common, strict=True)) | own)
        times = [row["time_ns"] + NOON - 1000 for row in wanted]
        assert table["time"].cast(pyarrow.int64()).to_pylist() == times
        assert table.drop_columns("time").to_pylist() == wanted


def test_losses_and_counts(tmp_path: Path) -> None:
    out = tmp_path / "out"
    losses = [Loss("user_events:work", RING, 2**63), Loss(ANY, AWAY, None)]
    target(out).send([work(1, 1, 2), work(2, losses=losses), work(3, 5)])
    found = query(
        f"select tracepoint, cause, count, sequence, host, forwarder, boot_id, epoch_ns(time)"
        f" from '{out}/event={COUNTS}/**/*.parquet' order by sequence, cause"
    )
    about = ("box", FORWARDER, "boot", NOON)
    assert found == [
        ("user_events:work", "arrived", 2, 1, *about),
        (ANY, AWAY, None, 2, *about),
        ("user_events:work", RING, 2**63, 2, *about),
        ("user_events:work", "arrived", 1, 3, *about),
    ]


@pytest.mark.parametrize(
    "name",
    [
        "a/b",
        "..",
        ".",
        "a=b",
        "",
        "%2F",
        "x" * 400,
        "é漢字",
        "a b?#&*[]{}'\"",
        "\udcff",
        "__HIVE_DEFAULT_PARTITION__",
    ],
)
def test_hostile_names(tmp_path: Path, name: str) -> None:
    """Names of the system, which is the longest part, and of the host."""
    out = tmp_path / "out"
    target(out).send([work(1, 7, system=name, host=name)])
    assert len(files(out)) == 2
    assert all(len(Path(path).parts) == 4 for path in files(out))
    found = query(f"select a, event, host from '{out}/event=*work/**/*.parquet'" if len(name) < 99 else
                  f"select a, event, host from '{out}/event=xx*/**/*.parquet'")  # fmt: skip
    shown = example.shown(name)
    assert found[0][0] == 7
    if len(name) < 99:
        host = None if name == "__HIVE_DEFAULT_PARTITION__" else shown or "unknown"
        assert found == [(7, f"{shown}:work", host)]
    # the counts have the same name
    assert query(f"select tracepoint from '{out}/event={COUNTS}/**/*.parquet'") == [(found[0][1],)]


def test_hostile_fields(tmp_path: Path) -> None:
    """Columns of readers that ignore case, and the columns of every table."""
    names = [
        "a",
        "A",
        "time",
        "Time_ns",
        "event",
        "day",
        "HOST",
        "boot_id",
        "forwarder",
        "instance",
        "x" * 200,
    ]
    events = Events(9, b"odd " + b"; ".join(b"u8 %s" % name.encode() for name in names))
    out = tmp_path / "out"
    target(out).send([batch(1, events, (9, range(len(names))))])
    found = duckdb.execute(f"select * from '{out}/event=*%3Aodd/**/*.parquet'")
    columns = [column[0] for column in found.description]
    assert len({column.casefold() for column in columns}) == len(columns)
    values = dict(zip(columns, found.fetchone(), strict=True))
    prefixed = {name: f"field_{name}" for name in names[1:-1]}
    assert [values[prefixed.get(name, name)] for name in names] == list(range(len(names)))


# Days


def days(folder: Path) -> dict[str, list[int]]:
    return {
        str(path.relative_to(folder).parts[1]): pyarrow.parquet.ParquetFile(path).read()["a"].to_pylist()
        for path in sorted(folder.glob("event=user*/**/*.parquet"))
    }


def test_midnight(tmp_path: Path) -> None:
    midnight = 1000 + DAY_NS // 2
    clock = ClockPair(midnight + 5, NOON + DAY_NS // 2 + 5, 3)
    target(tmp_path / "out").send(
        [work(1, 1, 2, 3, times=[midnight - 1, midnight, midnight + 1], clock=clock)]
    )
    assert days(tmp_path / "out") == {"day=2024-10-04": [1], "day=2024-10-05": [2, 3]}


def test_times_that_programs_invent(tmp_path: Path) -> None:
    """Three days at most, and no record is lost."""
    times = [0, 2**64 - 1, 2**63 - 1, 1000, *(n * DAY_NS for n in range(1, 300))]
    target(tmp_path / "out").send([work(1, *range(len(times)), times=times)])
    found = days(tmp_path / "out")
    assert set(found) <= {"day=2024-10-03", "day=2024-10-04", "day=2024-10-05"}
    assert sorted(itertools.chain(*found.values())) == list(range(len(times)))
    no_time = query(f"select a from '{tmp_path}/out/event=user*/**/*.parquet' where time is null order by 1")
    assert no_time == [(1,), (2,)]


# Layouts


def test_an_event_with_further_fields(tmp_path: Path) -> None:
    """In one `send`, and later."""
    out = tmp_path / "out"
    made = target(out)
    made.send([work(1, 1), batch(2, Events(5, b"work u32 a; u64 b"), (5, (2, 2**64 - 1)))])
    made.send([batch(3, Events(5, b"work u64 b"), (5, (7,)))])
    assert numbers(out) == [1, 2, None]
    assert numbers(out, column="b") == [7, 2**64 - 1, None]
    found = polars.scan_parquet(
        f"{out}/event=user_events%3Awork/**/*.parquet",
        schema={"a": polars.UInt32, "b": polars.UInt64},
        missing_columns="insert",
        extra_columns="ignore",
        hive_partitioning=False,
    )
    assert sorted(found.collect().rows(), key=str) == [(1, None), (2, 2**64 - 1), (None, 7)]


def test_fields_of_another_type(tmp_path: Path) -> None:
    """DuckDB takes a type for both; others read the files of one layout, which is in their names."""
    out = tmp_path / "out"
    target(out).send([work(1, 1), batch(2, Events(5, b"work __rel_loc char[] a"), (5, ("text",)))])
    assert numbers(out) == ["1", "text"]
    layouts = {Path(path).stem.rpartition("-")[2] for path in files(out) if "user_events%3Awork" in path}
    found = [polars.read_parquet(f"{out}/event=user*/**/*-{layout}.parquet")["a"] for layout in layouts]
    assert sorted(str(one.dtype) for one in found) == ["String", "UInt32"]
    assert sorted(str(one[0]) for one in found) == ["1", "text"]


def test_bytes_and_numbers_in_one_column(tmp_path: Path) -> None:
    """The statements of the page, with the folder and the layouts of here."""
    (text,) = [block.text for block in blocks(Path("docs/forward.md").read_text()) if "REPLACE" in block.text]
    layouts, values = text.replace("/data/events", f"{tmp_path}/out").split(";\n\n")
    as_bytes = batch(2, Events(5, b"work u64 b; __rel_loc u32[] a"), (5, (7, b"12345678")))
    target(tmp_path / "out").send([work(1, 258), as_bytes])
    with pytest.raises(duckdb.ConversionException):
        numbers(tmp_path / "out")
    found = query(layouts)
    assert [type_ for _, type_ in found] == ["BYTE_ARRAY", "INT32"]
    for told, (layout, _) in zip(("40d4aca4", "90f5077b"), found, strict=True):
        values = values.replace(told, layout)
    rows = duckdb.sql(values).select("a", "b").order("a").fetchall()
    assert rows == [("12345678", 7), ("258", None)]


# Batches sent again


def sent(*sequences: int) -> list[Batch]:
    """Batches of two events, the second not in all, so that only a part of a range may be there."""
    return [
        batch(n, WORK, (5, (n,)), *([(6, (n,))] if n % 2 else []), losses=[Loss(ANY, RING, 1)])
        for n in sequences
    ]


class Killed(BaseException):
    pass


def test_killed_at_any_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then sent again, with the same, with more, with fewer batches: nothing is lost or doubled."""
    write = parquet.write_file
    for again in ([1, 2, 3], [1, 2, 3, 4, 5], [1], [1, 2]):
        for point in itertools.count():
            folder = tmp_path / f"{len(again)}-{point}"
            steps = itertools.count()

            def step(steps: Iterator[int] = steps, point: int = point) -> None:
                if next(steps) == point:
                    raise Killed

            def killed_write(path: Path, content: Any, step: Callable[[], None] = step) -> None:
                step()  # before
                write(path, content)
                step()  # behind

            monkeypatch.setattr(parquet, "write_file", killed_write)
            folder.mkdir()
            first = target(folder / "out")
            try:
                first.send(sent(1, 2, 3))
                is_over = True
            except Killed:
                is_over = False
            monkeypatch.setattr(parquet, "write_file", write)
            second = target(folder / "out")
            second.send(sent(*again))
            if rest := [n for n in (1, 2, 3, 4, 5) if n > again[-1]]:
                second.send(sent(*rest))
            out = folder / "out"
            assert numbers(out, "user_events:work") == [1, 2, 3, 4, 5]
            assert numbers(out, "user_events:other") == [1, 3, 5]
            assert numbers(out, COUNTS, "distinct sequence") == [1, 2, 3, 4, 5]
            assert query(f"select count(*) from '{out}/event={COUNTS}/**/*.parquet'") == [(13,)]
            assert not [path for path in files(out) if not path.endswith(".parquet")]
            if is_over:
                assert point > 5
                break


def test_two_ranges_before_an_acknowledgement(tmp_path: Path) -> None:
    """A range is repeated, with further batches, and that is repeated."""
    out = tmp_path / "out"
    target(out).send(sent(1, 2))
    before = files(out)
    for _ in range(2):
        target(out).send(sent(1, 2, 3, 4))
        assert set(before) < set(files(out))
        assert numbers(out, "user_events:work") == [1, 2, 3, 4]
    target(out).send(sent(5))
    assert numbers(out, "user_events:work") == [1, 2, 3, 4, 5]
    assert "-000000000001-" not in (tmp_path / JOURNAL).read_text()


def test_batches_that_the_spool_dropped_meanwhile(tmp_path: Path) -> None:
    """They are reported as lost, so their files must go."""
    out = tmp_path / "out"
    target(out).send(sent(1, 2, 3))
    target(out).send(sent(3, 4))
    assert numbers(out, "user_events:work") == [3, 4]
    assert numbers(out, "user_events:other") == [3]
    target(out).send(sent(3, 4))
    assert numbers(out, "user_events:work") == [3, 4]
    # the same ends, without an event
    target(out).send([sent(3)[0], work(4, 4)])
    target(out).send([work(3, 3), work(4, 4)])
    assert numbers(out, "user_events:other") == []


@pytest.mark.parametrize("text", ["", "{", "[]", '{"address": 1}', "\0", '{"ranges": 5}'])
def test_a_damaged_journal(tmp_path: Path, text: str) -> None:
    (tmp_path / JOURNAL).write_text(text)
    target(tmp_path / "out").send(sent(1, 2))
    assert numbers(tmp_path / "out", "user_events:work") == [1, 2]


def test_another_spool_or_folder(tmp_path: Path) -> None:
    """Their sequence numbers mean other batches: no file is removed for them."""
    target(tmp_path / "out").send(sent(1, 2, 3))
    target(tmp_path / "other").send(sent(2))
    target(tmp_path / "out").send([attrs.evolve(sent(2)[0], forwarder="another")])
    assert numbers(tmp_path / "out", "user_events:work") == [1, 2, 2, 3]


def test_a_copy_of_the_spool(tmp_path: Path) -> None:
    """A cloned machine has the spool's batches again, and numbers its own as the original does."""
    (tmp_path / "a").mkdir()
    settings = Settings(directory=tmp_path / "a")
    open_target(f"parquet:{tmp_path / 'out'}", settings).send([work(1, 1), work(2, 2)])
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    for name, a in (("a", 3), ("b", 4)):
        made = open_target(f"parquet:{tmp_path / 'out'}", Settings(directory=tmp_path / name))
        made.send([work(1, 1), work(2, 2)])
        made.send([work(3, a, clock=ClockPair(1000 + a, NOON, 3))])
    assert numbers(tmp_path / "out") == [1, 2, 3, 4]
    assert numbers(tmp_path / "out", COUNTS, "sum(count)") == [4]


# Faults


def test_batches_that_cannot_be_decoded(tmp_path: Path) -> None:
    """Only these are refused; their losses are reported."""
    out = tmp_path / "out"
    broken = attrs.evolve(sent(2)[0], body=b"\xff" * 40)
    few = attrs.evolve(sent(3)[0], counts={"user_events:work": 5})
    odd = attrs.evolve(sent(4)[0], events={5: ("user_events", b"no format")})
    assert target(out).send([*sent(1), broken, few, odd, *sent(5)]) == {"user_events:work": 7}
    assert numbers(out, "user_events:work") == [1, 5]
    causes = query(f"select cause, sum(count) from '{out}/event={COUNTS}/**/*.parquet' group by 1 order by 1")
    assert causes == [("arrived", 4), (RING, 5)]


@pytest.mark.parametrize("at", range(4))
def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    """Nothing incomplete is visible or left; sent again, all is there once."""
    out = tmp_path / "out"
    made = target(out)
    steps = itertools.count()
    fsync = os.fsync

    def full(fd: int) -> None:
        if next(steps) == at + 2:  # (behind the journal and its directory)
            raise OSError(errno.ENOSPC, "full")
        fsync(fd)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="full") as error:
        made.send(sent(1, 2, 3))
    assert at or str(error.value.filename).startswith(str(out))
    monkeypatch.undo()
    assert not [path for path in files(out) if not path.endswith(".parquet")]
    numbers(out)  # all are whole
    made.send(sent(1, 2, 3))
    assert numbers(out, "user_events:work") == [1, 2, 3]
    assert numbers(out, "user_events:other") == [1, 3]


def test_a_full_disk_of_the_spool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It must not keep the target from making room there."""
    made = target(tmp_path / "out")
    write = parquet.write_file

    def full(path: Path, content: Any) -> None:
        if path.name == JOURNAL:
            raise OSError(errno.ENOSPC, "full")
        write(path, content)

    monkeypatch.setattr(parquet, "write_file", full)
    made.send(sent(1, 2))
    assert numbers(tmp_path / "out", "user_events:work") == [1, 2]


def test_the_folder_is_removed(tmp_path: Path) -> None:
    """It could be a disk that is no longer mounted: do not fill the one below."""
    out = tmp_path / "out"
    made = target(out)
    made.send(sent(1))
    shutil.rmtree(out)
    with pytest.raises(FileNotFoundError, match=r"the folder is gone.*out"):
        made.send(sent(2))
    out.mkdir()
    made.send(sent(2))
    assert numbers(out, "user_events:work") == [2]
    shutil.rmtree(out)
    out.write_text("a file")
    with pytest.raises(OSError):
        made.send(sent(3))


# Addresses


def test_options(tmp_path: Path) -> None:
    limits = target(tmp_path / "out", records="5", bytes="100", gather="0.5m").limits
    assert (limits.records, limits.bytes, limits.gather_s) == (5, 100, 30)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"rows": "5"}, "no option 'rows' of parquet; there are: records, bytes, gather"),
        ({"records": "0"}, "option records: '0'"),
        ({"bytes": "1M"}, "option bytes: '1M'"),
        ({"gather": "-1"}, "option gather: '-1'"),
        ({"gather": "nan"}, "option gather: 'nan'"),
        ({"records": "1e3"}, "option records"),
    ],
)
def test_options_that_are_none(tmp_path: Path, options: dict[str, str], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        target(tmp_path / "out", **options)


@pytest.mark.parametrize(
    ("place", "match"),
    [
        ("", "give a folder: parquet:/data/events"),
        ("s3://key:secret@bucket/x", "no secrets in addresses: --secret access_key=FILE"),
        ("s3://bucket/x?endpoint_override=http://key:secret@host", "no secrets in addresses"),
        ("s3://bucket/x?acces_key=5", "."),
        ("nosuch://bucket/x", "."),
        ("mock://x", "."),
    ],
)
def test_addresses_that_are_none(tmp_path: Path, place: str, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        open_target(f"parquet:{place}", Settings(directory=tmp_path))
