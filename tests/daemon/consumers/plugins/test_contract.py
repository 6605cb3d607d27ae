"""The interface of a plug-in, and its records."""

import errno
import struct
from collections.abc import Sequence

import attrs
import pytest

from utracefs_protocol.errors import TraceError
from utracefs_protocol.events._fields import Fields
from utracefs_protocol.events.declaration import parse
from utracefsd.consumers.plugins.contract import Consumer, ConsumerError, Record

FIELDS = Fields(parse(b"test u32 a; __rel_loc char[] s; char[4] c; s8 n").fields)
PAYLOAD = struct.pack("<IHH4sb", 7, 5, 3, b"ab\0\0", -1) + b"hi\0"


def record(payload: bytes = PAYLOAD, fields: Fields = FIELDS) -> Record:
    return Record(b"test", b"user_events", 5, 1, 46, payload, fields)


def test_fields_are_unpacked_by_name() -> None:
    assert record().fields() == {"a": 7, "s": "hi", "c": "ab", "n": -1}
    assert record(b"\1\0\0\0", Fields(parse(b"test u32 a").fields)).fields() == {"a": 1}
    assert record(b"", Fields(())).fields() == {}


@pytest.mark.parametrize(
    "payload", [b"", PAYLOAD[:3], PAYLOAD[:12], PAYLOAD[:-1], PAYLOAD.replace(b"\5\0\3\0", b"\xff\xff\3\0")]
)
def test_a_payload_that_its_program_cut_short(payload: bytes) -> None:
    """The daemon passes the bytes; only asking for the fields shows that they are missing."""
    short = record(payload)
    assert short.payload == payload
    with pytest.raises(ValueError):
        short.fields()


def test_a_record_cannot_be_changed() -> None:
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        record().pid = 1  # type: ignore[misc]
    fields = record().fields()
    fields["a"] = 8
    assert record().fields()["a"] == 7


def test_records_are_equal_by_what_was_written() -> None:
    assert record() == record(fields=Fields(()))
    assert record() != record(b"")
    assert "Fields" not in repr(record())
    assert "pid=46" in repr(record())


class Takes:
    def take(self, batch: Sequence[Record]) -> None:
        pass


class OnlyReports:
    def report(self) -> str:
        return ""


def test_a_class_with_take_is_a_consumer_and_no_other() -> None:
    assert isinstance(Takes(), Consumer)
    for other in (OnlyReports(), object(), [], None):
        assert not isinstance(other, Consumer)


def test_an_error_of_a_plugin_is_an_answer_to_its_caller() -> None:
    error = ConsumerError(errno.EIO, "plug-in 'x' cannot be loaded")
    assert isinstance(error, TraceError)
    assert (error.errno, error.text) == (errno.EIO, "plug-in 'x' cannot be loaded")
