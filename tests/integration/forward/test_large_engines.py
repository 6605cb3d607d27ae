"""ClickHouse (chdb) and Spark read the folder of `utracefs forward parquet:`.

Half a gigabyte each, so `make ci` does not install them: `pip install --group engines`, and Java.
"""

from __future__ import annotations

import importlib
import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.client.recordings.events import Events
from tests.judges import LEFT_OUT, hidden, library

library("duckdb")
library("polars")

from tests.client.forward.test_parquet import NOON, batch, target
from utracefs.forward.losses import RING, Loss

EDGES = Events(5, b"edges u64 u; s64 s; u8 b; char[8] text", b"others u16 a")
ROWS = [(2**64 - 1, -(2**63), 255, "é"), (2**63, 2**63 - 1, 0, ""), (0, -1, 1, "a,'")]
COUNTS = {
    ("user_events:edges", "arrived"): 3,
    ("user_events:edges", "ring"): 2**63,
    ("user_events:others", "arrived"): 1,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = batch(
        1,
        EDGES,
        *((5, row) for row in ROWS),
        (6, (9,)),
        times=[1000, 1001, 1999, 1000],
        losses=[Loss("user_events:edges", RING, 2**63)],
    )
    target(tmp_path / "out").send([made])
    return tmp_path / "out"


def needs(name: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(hidden(name) or find_spec(name) is None, reason=LEFT_OUT + name)


@needs("chdb")
def test_clickhouse(folder: Path) -> None:
    def query(text: str) -> list[dict[str, Any]]:
        text += " SETTINGS use_hive_partitioning = 1, output_format_json_quote_64bit_integers = 0"
        found = importlib.import_module("chdb").query(text, "JSONEachRow").bytes()
        return [json.loads(line) for line in found.splitlines()]

    files = f"file('{folder}/event=user_events%3Aedges/**/*.parquet', Parquet)"
    assert query(
        "SELECT decodeURLComponent(event) AS event, toString(day) AS day, host, u, s, b, text, "
        f"toUnixTimestamp64Nano(time) AS time FROM {files} ORDER BY time"
    ) == [
        {
            "event": "user_events:edges",
            "day": "2024-10-04",
            "host": "box",
            **dict(zip("usb", row, strict=False)),
            "text": row[3],
            "time": NOON + after,
        }
        for row, after in zip(ROWS, (0, 1, 999), strict=True)
    ]
    counts = query(f"SELECT * FROM file('{folder}/event=utracefs.counts/**/*.parquet', Parquet)")
    assert {(row["tracepoint"], row["cause"]): row["count"] for row in counts} == COUNTS


@needs("pyspark")
def test_spark(folder: Path) -> None:
    session = (
        importlib.import_module("pyspark.sql")
        .SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.warehouse.dir", str(folder.parent / "warehouse"))
        .config("spark.sql.legacy.parquet.nanosAsLong", "true")
        .getOrCreate()
    )
    try:
        table = session.read.option("basePath", str(folder)).parquet(f"{folder}/event=user_events%3A*")
        assert {row["event"] for row in table.collect()} == {"user_events:edges", "user_events:others"}
        table = session.read.option("basePath", str(folder)).parquet(f"{folder}/event=user_events%3Aedges")
        found = table.orderBy("time").collect()
        assert [(int(row["u"]), row["s"], row["b"], row["text"]) for row in found] == ROWS
        assert [row["time"] - NOON for row in found] == [0, 1, 999]
        assert {(row["event"], str(row["day"]), row["host"]) for row in found} == {
            ("user_events:edges", "2024-10-04", "box")
        }
        counts = session.read.parquet(f"{folder}/event=utracefs.counts").collect()
        assert {(row["tracepoint"], row["cause"]): int(row["count"]) for row in counts} == COUNTS
    finally:
        gateway = session.sparkContext._gateway
        session.stop()
        gateway.shutdown()
        gateway.proc.communicate(timeout=100)  # its Java ends at the end of its input
