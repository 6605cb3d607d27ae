"""The table of all records beside JSON lines of the same; what is too long."""

import json
from pathlib import Path

import utracefs
from tests.client.export.example import write
from tests.client.recordings.trace_dat import example
from tests.judges import library
from utracefs.export._json_text import JsonText
from utracefs.export.tables._all_records import AllRecords
from utracefs.recordings import columns

library("pyarrow")


def test_the_same_as_json_lines(tmp_path: Path) -> None:
    with utracefs.open(write(tmp_path / "t.dat")) as recording:
        lines = [
            json.loads(line) for line in JsonText(recording.reading().records).read(1 << 20).splitlines()
        ]
        (batch,) = AllRecords(recording.reading().records)
        rows = columns.arrow_batch(batch, columns.arrow_schema(batch, {})).to_pylist()
        for row in rows:
            assert (row.pop("instance"), row.pop("lost")) == ("", 0)
            row["fields"] = json.loads(row["fields"])
        assert rows == lines


def test_batches_are_bounded(tmp_path: Path) -> None:
    """Lines of any length, and more records than a batch has."""
    path = example.write(tmp_path / "t", [10 * example.pages(example.many_records(0, 7_000))])
    with utracefs.open(path) as recording:
        batches = list(AllRecords(recording.reading().records))
        assert sum(batch.rows for batch in batches) == 70_000
        assert len(batches) > 1
        schema = columns.arrow_schema(batches[0], {})
        for batch in batches:
            table = columns.arrow_batch(batch, schema)
            table.validate(full=True)
            assert table.column("fields").null_count == 0
        assert AllRecords(recording.reading().records).empty().rows == 0
