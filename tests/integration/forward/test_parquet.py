"""`utracefs forward parquet:...` between real processes: the queries of docs/forward.md against the daemon's
own numbers."""

from __future__ import annotations

import contextlib
import json
import os
import re
import struct
import subprocess
import time
from functools import partial
from pathlib import Path
from typing import Any

import msgpack
import pytest

from tests.client.daemons import fake_daemon
from tests.client.recordings.event_header.event_headers import FIELDS, NAME, field, payload
from tests.integration.conftest import DaemonProcess
from tests.integration.forward.conftest import WAIT_S, Start, stop
from tests.integration.pages import blocks
from tests.judges import library, needs
from tests.soak.plain import PlainConnection
from utracefs import Session
from utracefs.forward.forwarder import STATUS_FILE

duckdb = library("duckdb")
library("pyarrow.parquet")


EXAMPLE, SUM, _ = (block.text for block in blocks(Path("docs/forward.md").read_text()) if block.kind == "sql")


wait_for = partial(fake_daemon.wait_for, timeout_s=WAIT_S)


@pytest.fixture
def start(forward: Start, tmp_path: Path) -> Start:
    return partial(forward, f"parquet:{tmp_path / 'out'}", "-O", "gather=0.05")


def emit(session: Session, declaration: str, *records: tuple[Any, ...]) -> None:
    event = session.event(declaration)
    wait_for(lambda: event.registered and event)
    for values in records:
        event.emit(*values)
    assert session.flush(WAIT_S)


def query(text: str, folder: Path) -> list[dict[str, Any]]:
    found = duckdb.execute(text.replace("/data/events", str(folder)))
    names = [column[0] for column in found.description]
    return [dict(zip(names, row, strict=True)) for row in found.fetchall()]


def emitted(daemon: DaemonProcess, event: str) -> int:
    with daemon.tree() as tree:
        found = re.match(rb"emitted: (\d+)\n", tree.read_file(f"events/user_events/{event}/stats"))
    assert found is not None
    return int(found[1])


def test_emitted_is_arrived_and_lost(
    daemon: DaemonProcess, session: Session, start: Start, tmp_path: Path
) -> None:
    """With losses by the policy. Records of EventHeader have their own names, and counts by tracepoint."""
    (tmp_path / "policy").write_text("max_records_per_s = 500\n")
    process = start("--policy", str(tmp_path / "policy"))
    emit(session, "quiet u32 b", *((n,) for n in range(10)))
    with contextlib.closing(PlainConnection(daemon.directory)) as connection:
        index, _ = connection.register(f"{NAME.decode()} {FIELDS.decode()}")
        sold = payload(b"sold", [field(b"status", 3)], struct.pack("<H", 500))
        for _ in range(3):
            connection.sock.sendall(msgpack.packb(struct.pack("<I", index) + sold))
        connection.call("sync")
        nr_sold = emitted(daemon, NAME.decode())
    emit(session, "work u64 a", *((n,) for n in range(2000)))
    stop(process)
    rows = {row["tracepoint"]: row for row in query(SUM, tmp_path / "out")}
    assert {row["host"] for row in rows.values()} == {os.uname().nodename}
    for event in ("work", "quiet"):
        row = rows[f"user_events:{event}"]
        assert row["records"] == row["arrived"]
        assert row["arrived"] + row["lost"] == emitted(daemon, event)
        assert not row["is_unknown"]
    assert rows["user_events:work"]["lost"] > 0
    header = rows[f"user_events:{NAME.decode()}"]
    assert (header["arrived"], header["records"]) == (nr_sold, None) == (3, None)
    file = f"{tmp_path / 'out'}/event=Shop%3Asold/**/*.parquet"
    assert (
        duckdb.execute(f"select status, level, typeof(status) from '{file}'").fetchall()
        == [(500, 4, "USMALLINT")] * 3
    )


def test_the_example(session: Session, start: Start, tmp_path: Path) -> None:
    process = start()
    emit(session, "http_request u32 status; u64 usec", *((200 + n, n * 1000) for n in range(100)))
    stop(process)
    today = time.strftime("%Y-%m-%d", time.gmtime(time.time() - 86400))
    rows = query(EXAMPLE.replace("2026-11-22", today), tmp_path / "out")
    assert [row["status"] for row in rows] == list(range(202, 300))


CLOCK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t id, struct timespec *to)
{
	int (*real)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, "clock_gettime");
	int result = real(id, to), fd;
	char text[32] = "";

	if (!result && id == CLOCK_REALTIME && (fd = open(getenv("CLOCK_SET_BY"), O_RDONLY)) >= 0) {
		if (read(fd, text, sizeof(text) - 1) > 0)
			to->tv_sec += atol(text);
		close(fd);
	}
	return result;
}
"""
"""Preloaded: the time of day is set by so many seconds."""


@needs("gcc")
def test_the_clock_is_set(daemon: DaemonProcess, session: Session, start: Start, tmp_path: Path) -> None:
    """Forwards, and back behind the begin, while it runs: all records arrive once, in their order, and have
    the time of day of their batch."""
    (tmp_path / "clock.c").write_text(CLOCK)
    clock = tmp_path / "clock.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", clock, tmp_path / "clock.c", "-ldl"], check=True)
    set_by = tmp_path / "set_by"
    set_by.write_text("0")
    process = start(environ={"LD_PRELOAD": str(clock), "CLOCK_SET_BY": str(set_by)})
    event = session.event("work u64 a")
    wait_for(lambda: event.registered and event)

    def has_sent(count: int) -> bool:
        status: dict[str, Any] = json.loads((tmp_path / "spool" / STATUS_FILE).read_text())
        return bool(status["records_sent"] == count)

    day = 86400
    steps = [0, 3 * day, -5 * day]
    for n, step in enumerate(steps):
        set_by.with_suffix(".new").write_text(str(step))
        set_by.with_suffix(".new").replace(set_by)
        for number in range(100):
            event.emit(100 * n + number)
        assert session.flush(WAIT_S)
        wait_for(partial(has_sent, 100 * (n + 1)))
    stop(process)
    rows = query(
        "SELECT a, day, epoch_ns(time) AS unix_ns, time_ns FROM "
        "read_parquet('/data/events/event=user_events%3Awork/**/*.parquet') ORDER BY time_ns",
        tmp_path / "out",
    )
    assert [row["a"] for row in rows] == list(range(300))
    offsets = [row["unix_ns"] - row["time_ns"] for row in rows]
    for n, step in enumerate(steps):
        for row, offset in list(zip(rows, offsets, strict=True))[100 * n : 100 * (n + 1)]:
            assert abs(offset - offsets[0] - step * 10**9) < 10**9
            assert str(row["day"]) == time.strftime("%Y-%m-%d", time.gmtime(row["unix_ns"] // 10**9))
    (told,) = query(SUM, tmp_path / "out")
    assert (told["arrived"], told["records"], told["lost"]) == (300, 300, 0)
    assert emitted(daemon, "work") == 300
