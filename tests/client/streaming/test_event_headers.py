"""Streams with events of EventHeader: their filter is about the fields in the records."""

from __future__ import annotations

import contextlib
import json
import select
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import msgpack
import pytest

import utracefs
from tests.client.recordings.event_header.event_headers import FIELDS, NAME, field, payload
from tests.integration.conftest import DaemonProcess
from tests.soak.plain import PlainConnection

Emit = Callable[..., None]


@pytest.fixture
def emit(utracefsd: DaemonProcess) -> Iterator[Emit]:
    """Emits events `sold` of EventHeader, with a status and an item; other payloads unchanged."""
    with contextlib.closing(PlainConnection(utracefsd.directory)) as connection:
        index, _ = connection.register(f"{NAME.decode()} {FIELDS.decode()}")

        def emit(*statuses: int | bytes) -> None:
            for status in statuses:
                if isinstance(status, int):
                    values = struct.pack("<H", status) + b"tea\0"
                    status = payload(b"sold", [field(b"status", 3), field(b"item", 7)], values)
                connection.sock.sendall(msgpack.packb(struct.pack("<I", index) + status))
            connection.call("sync")

        yield emit


def attach(utracefsd: DaemonProcess, filter: str, *, raw: bool = False) -> utracefs.Stream:
    directory = utracefsd.directory
    return utracefs.attach(filter=filter, directory=directory, timeout_s=15, raw_eventheader=raw)


def test_the_fields_in_the_records(utracefsd: DaemonProcess, emit: Emit) -> None:
    with attach(utracefsd, 'status >= 500 && item == "tea"') as stream:
        emit(200, 500, 404, 503)
        assert [r.fields["status"] for r in islice(stream, 2)] == [500, 503]
        emit(501)
        batch = next(stream.batches())
        assert [r.name for r in batch] == ["sold"]
        assert batch.counts == {f"user_events:{NAME.decode()}": 1}
        assert not stream.lost
    with attach(utracefsd, "level == 4 && keyword == 0x1f") as stream:
        emit(7)
        assert next(stream).fields["status"] == 7


def test_other_events_are_filtered_by_the_daemon(
    utracefsd: DaemonProcess, emit: Emit, new_session: Callable[..., utracefs.Session]
) -> None:
    session = new_session()
    with attach(utracefsd, "status >= 500") as stream:
        other = session.event("other u16 status")
        while not (other.registered and other):
            pass
        for status in (200, 500):
            other.emit(status)
        assert session.flush(60)
        emit(200, 501)
        batch = next(stream.batches())
        found = [(r.name, r.fields["status"]) for r in batch]
        counts = dict(batch.counts)
        while len(found) < 2:
            batch = next(stream.batches())
            found += [(r.name, r.fields["status"]) for r in batch]
            counts |= batch.counts
        assert found == [("other", 500), ("sold", 501)]
        assert counts == {"user_events:other": 1, f"user_events:{NAME.decode()}": 2}


def test_an_event_that_has_no_such_field_is_left_out(utracefsd: DaemonProcess, emit: Emit) -> None:
    with attach(utracefsd, "status >= 500") as stream:
        emit(payload(b"plain"), payload(b"broken")[:20], payload(b"text", [field(b"status", 7)], b"9\0"), 500)
        assert next(stream).fields["status"] == 500


def test_raw_the_daemon_filters_by_its_fields(utracefsd: DaemonProcess, emit: Emit) -> None:
    with attach(utracefsd, "id == 0 && eventheader_flags == 7 && opcode == 0", raw=True) as stream:
        emit(payload(b"one", id=3, opcode=1, big=True), 500)
        record = next(stream)
        assert record.name == NAME.decode()
        assert (record.fields["id"], record.fields["opcode"]) == (0, 0)


def test_members_of_structs(utracefsd: DaemonProcess, emit: Emit) -> None:
    def nested(number: int) -> bytes:
        members = [field(b"user", 1, 2), field(b"id", 3), field(b"name", 7)]
        return payload(b"nested", members, struct.pack("<H", number) + b"jo\0")

    with attach(utracefsd, 'user.id > 4 && user.name ~ "j*"') as stream:
        emit(nested(4), nested(5))
        assert next(stream).fields == {"user": {"id": 5, "name": "jo"}, "level": 4, "keyword": 31}


def test_raw_a_filter_by_other_fields_is_refused(utracefsd: DaemonProcess, emit: Emit) -> None:
    stream = utracefs.attach(
        NAME.decode(), filter="status >= 500", directory=utracefsd.directory, raw_eventheader=True
    )
    with pytest.raises(OSError, match="Field not found"), stream:
        pass


def test_the_command_refuses_what_is_no_filter(utracefsd: DaemonProcess, emit: Emit) -> None:
    filter = "status >= 500 and more"
    command = [sys.executable, "-m", "utracefs", "stream", "-e", NAME.decode(), "-f", filter, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 1
    assert f"  {filter}\n" in done.stderr


def test_the_command(utracefsd: DaemonProcess, emit: Emit) -> None:
    words = ["stream", "-e", NAME.decode(), "-f", "status >= 500", "--json"]
    command = [sys.executable, "-m", "utracefs", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        deadline = time.monotonic() + 60
        while not select.select([process.stdout], [], [], 0.02)[0] and time.monotonic() < deadline:
            emit(404, 500)
        process.terminate()
        found = [json.loads(line)["fields"]["status"] for line in process.stdout]
    assert found and set(found) == {500}


def test_record_says_where_such_a_filter_works(utracefsd: DaemonProcess, emit: Emit, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "utracefs", "record", "-e", NAME.decode(), "-f", "status >= 500", "true"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, timeout=100)
    assert done.returncode == 1
    assert "filter: Field not found; it has eventheader_flags, " in done.stderr
    assert "`report --filter`" in done.stderr
