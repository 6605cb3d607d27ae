"""OTLP: requests as opentelemetry-proto reads them, and a collector that answers in every way."""

from __future__ import annotations

import contextlib
import math
import re
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.client.forward.kit import batch, batch_of, packed, record
from tests.client.forward.otlp_server import (
    KINDS,
    Collector,
    attributes,
    collecting,
    items,
    logs_service,
)
from tests.client.nats.certificates import certificates
from tests.client.nats.test_connection import fake
from tests.client.recordings.event_header.event_headers import FIELDS, field, payload
from utracefs.forward import otlp
from utracefs.forward.batch import Batch
from utracefs.forward.losses import ANY, Loss
from utracefs.forward.otlp import Encoder, OtlpTarget
from utracefs.forward.target import Refused, Settings, TryAgain, open_target

ALL = (
    "all u8 a; s8 b; u16 c; s16 d; u32 e; s32 f; u64 g; s64 h; struct double i 8; struct float j 4;"
    " struct bool k 1; char[5] l; __rel_loc char[] m; __rel_loc u8[] n"
)
SPAN_BEGIN = "order_begin u64 span_id; u64 parent_id; u32 order"
SPAN_END = "order_end u64 span_id; u64 parent_id; u64 duration_ns; __rel_loc char[] error; u32 order"


def encoded(one: Batch, encoder: Encoder | None = None) -> list[tuple[str, str, Any]]:
    """Path, scope, item of all requests."""
    found = []
    for request in (encoder or Encoder()).requests(one):
        message = KINDS["/" + request.path][0].FromString(request.body)
        told = items(message)
        assert len(told) == request.items
        found += [("/" + request.path, scope, item) for scope, item in told]
    return found


def one_log(command: str, *values: object) -> Any:
    ((path, scope, item),) = encoded(batch_of({5: command}, [(5, packed(command, *values))]))
    assert (path, scope) == ("/v1/logs", "user_events")
    return item


def test_times_that_programs_invent() -> None:
    """Unknown, but for the time of reading them."""
    times = (1000, 2**63 - 1, 2**64 - 1, 2**64 - 10**18)
    made = attrs.evolve(batch((1,) * len(times)), body=b"".join(record(1, time_ns=one) for one in times))
    found = [(log.time_unix_nano, log.observed_time_unix_nano) for _, _, log in encoded(made)]
    assert found == [(10**18 + 1000, 10**18 + 10), *[(0, 10**18 + 10)] * 3]


OURS = {"cpu.logical_number": 1, "process.pid": 77, "thread.id": 7, "thread.name": "main"}


@given(
    st.tuples(
        *(
            st.integers(0, 2**n - 1) if u else st.integers(-(2 ** (n - 1)), 2 ** (n - 1) - 1)
            for n in (8, 16, 32, 64)
            for u in (True, False)
        ),
        st.floats(width=64),
        st.floats(width=32),
        st.booleans(),
        st.text(st.characters(codec="ascii", exclude_characters="\0"), max_size=4),
        st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=200),
        st.binary(max_size=300),
    )
)
def test_every_type_of_field(values: tuple[Any, ...]) -> None:
    """Equal to what opentelemetry-proto makes of the same values."""
    item = one_log(ALL, *values)
    expected = dict(zip("abcdefghijklmn", values, strict=True))
    if expected["g"] >= 2**63:
        expected["g"] = str(expected["g"])
    assert (item.time_unix_nano, item.observed_time_unix_nano) == (10**18 + 1000, 10**18 + 10)
    assert item.event_name == "all"
    assert not item.HasField("body") and item.severity_number == 0 and item.trace_id == b""
    found = attributes(item)
    for name in "ij":
        told, meant = found.pop(name), expected.pop(name)
        assert told == meant or (math.isnan(told) and math.isnan(meant))
    assert found == {**expected, **OURS}
    assert type(found["k"]) is bool


def test_arrays() -> None:
    command = (
        "rows struct u64_2 a 16; struct s8_2 b 2; struct float_1 c 4; struct bool_2 d 2; struct u8_9 e 4"
    )
    item = one_log(command, [1, 2**63], [-1, 5], [0.5], [True, False], b"\0\1\2\3")
    assert {name: found for name, found in attributes(item).items() if name in "abcde"} == {
        "a": [1, str(2**63)],
        "b": [-1, 5],
        "c": [0.5],
        "d": [True, False],
        "e": b"\0\1\2\3",
    }


def test_the_bytes_are_those_of_the_library() -> None:
    """But for lengths of records, which are padded: serialized again, both are equal."""
    one = batch_of({5: ALL}, [(5, packed(ALL, 1, -1, 2, -2, 3, -3, 4, -4, 0.5, -0.5, True, "x", "ü", b"\0"))])
    (request,) = Encoder({"service.name": "shop"}).requests(one)
    message = logs_service.ExportLogsServiceRequest.FromString(request.body)
    (resource,) = message.resource_logs
    assert attributes(resource.resource) == {
        "service.name": "shop",
        "host.name": "here",
        "utracefs.boot_id": "boot",
    }
    again = message.SerializeToString(deterministic=True)
    assert logs_service.ExportLogsServiceRequest.FromString(again) == message
    assert len(request.body) - len(again) <= 3


def test_texts_that_are_not_utf_8() -> None:
    item = one_log("e __rel_loc char[] text", b"a\xffb")
    assert attributes(item)["text"] == "a\ufffdb"


def test_a_field_with_a_name_that_is_taken() -> None:
    assert attributes(one_log("e u32 cpu", 5)) == {"cpu": 5, **OURS}


def test_a_record_that_is_too_short() -> None:
    ((_, _, item),) = encoded(batch_of({5: "e u64 a"}, [(5, b"\1")]))
    assert attributes(item) == OURS


@pytest.mark.parametrize(
    ("command", "values", "number"),
    [
        ("e s32 severity_number", (9,), 9),
        ("e s32 severity_number", (0,), 0),
        ("e s32 severity; __rel_loc char[] severity_text", (17, "ERROR"), 17),
        ("e s32 level; u32 line; __rel_loc char[] logger; __rel_loc char[] message", (30, 1, "a", "b"), 13),
        ("e s32 level; u32 line; __rel_loc char[] logger; __rel_loc char[] message", (5, 1, "a", "b"), 0),
        ("e s32 severity", (17,), 0),
        ("e s32 level", (30,), 0),
    ],
)
def test_severity(command: str, values: tuple[Any, ...], number: int) -> None:
    assert one_log(command, *values).severity_number == number


def test_an_invalid_severity_is_an_attribute() -> None:
    item = one_log("e s32 severity_number", 25)
    assert (item.severity_number, attributes(item)["severity_number"]) == (0, 25)


def test_logs_of_opentelemetry() -> None:
    item = one_log(
        "otel_log s32 severity; __rel_loc char[] severity_text; __rel_loc char[] body;"
        " __rel_loc char[] event_name; __rel_loc char[] trace_id; u64 span_id",
        13,
        "WARN",
        "Grüße",
        "",
        "0af7651916cd43dd8448eb211c80319c",
        0xB7AD6B7169203331,
    )
    assert (item.severity_number, item.severity_text, item.body.string_value) == (13, "WARN", "Grüße")
    assert item.trace_id.hex() == "0af7651916cd43dd8448eb211c80319c"
    assert item.span_id.hex() == "b7ad6b7169203331"
    assert attributes(item) == {"event_name": "", **OURS}


@pytest.mark.parametrize(
    ("trace", "span", "kept"),
    [
        ("0" * 32, "", set()),
        ("", "", set()),
        ("0AF7651916CD43DD8448EB211C80319C", "b7ad6b7169203331", set()),
        ("0af7", "b7ad6b716920333", {"trace_id", "span_id"}),
        ("g" * 32, "g" * 16, {"trace_id", "span_id"}),
    ],
)
def test_ids_as_texts(trace: str, span: str, kept: set[str]) -> None:
    """Invalid ones are attributes."""
    item = one_log("e __rel_loc char[] trace_id; __rel_loc char[] span_id", trace, span)
    assert attributes(item).keys() - OURS.keys() == kept
    assert len(item.trace_id) == (16 if trace.startswith("0AF") else 0)
    assert len(item.span_id) == (8 if span == "b7ad6b7169203331" else 0)


def test_an_event_of_eventheader() -> None:
    """System, severity, and the ids of the Common Schema."""
    name = b"Shop_L4K1f"
    command = f"{name.decode()} {FIELDS.decode()}"
    fields = [field(b"user", 10, 11), field(b"n", 4)]
    data = b"\2\0hi" + (7).to_bytes(4, "little")
    one = batch_of({5: command}, [(5, payload(b"order", fields, data, level=2))])
    ((path, scope, item),) = encoded(one)
    assert (path, scope, item.event_name, item.severity_number) == ("/v1/logs", "Shop", "order", 17)
    assert attributes(item) == {"user": "hi", "n": 7, "level": 2, "keyword": 0x1F, **OURS}


def test_layouts_of_an_event_are_counted_together() -> None:
    command = f"Shop_L4K1f {FIELDS.decode()}"
    records = [(5, payload(b"order", [field(name, 2)], b"\7")) for name in (b"a", b"b", b"a")]
    (request,) = Encoder().requests(batch_of({5: command}, records))
    assert (request.items, dict(request.counts)) == (3, {"Shop:order": 3})
    assert len(encoded(batch_of({5: command}, records))) == 3


def test_spans() -> None:
    """The end is a span; the begin a log record of the same trace."""
    encoder = Encoder()
    records = [
        (5, packed(SPAN_BEGIN, 1, 0, 7)),
        (5, packed(SPAN_BEGIN, 2, 1, 8)),
        (5, packed(SPAN_BEGIN, 3, 2, 9)),
        (6, packed(SPAN_END, 3, 2, 5, "", 9)),
        (6, packed(SPAN_END, 2, 1, 100, "ValueError: ä", 8)),
        (6, packed(SPAN_END, 1, 0, 10**30 % 2**64, "", 7)),
    ]
    found = encoded(batch_of({5: SPAN_BEGIN, 6: SPAN_END}, records, forwarder="ab" * 8), encoder)
    logs = [item for path, _, item in found if path == "/v1/logs"]
    spans = [item for path, _, item in found if path == "/v1/traces"]
    assert [(log.event_name, log.span_id[-1]) for log in logs] == [("order_begin", n) for n in (1, 2, 3)]
    assert [attributes(log)["parent_id"] for log in logs] == [0, 1, 2]
    assert {item.trace_id.hex() for item in logs + spans} == {"ab" * 8 + "0000000000000001"}
    assert [(s.name, s.span_id[-1], s.parent_span_id.hex(), s.status.code) for s in spans] == [
        ("order", 3, "0000000000000002", 0),
        ("order", 2, "0000000000000001", 2),
        ("order", 1, "", 0),
    ]
    assert spans[1].status.message == "ValueError: ä"
    assert [s.end_time_unix_nano - 10**18 - 1000 for s in spans] == [3, 4, 5]
    assert spans[1].end_time_unix_nano - spans[1].start_time_unix_nano == 100
    assert spans[2].start_time_unix_nano >= 0
    assert attributes(spans[0]) == {"order": 9, **OURS}
    assert spans[0].kind == 1
    again = batch_of({6: SPAN_END}, [(6, packed(SPAN_END, 4, 3, 5, "", 9))], forwarder="ab" * 8)
    ((_, _, later),) = encoded(again, encoder)
    assert later.trace_id == spans[0].trace_id


def test_spans_of_opentelemetry() -> None:
    command = (
        "otel_span_end u64 span_id; u64 parent_id; u64 duration_ns; __rel_loc char[] error;"
        " __rel_loc char[] span_name; __rel_loc char[] trace_id"
    )
    one = batch_of(
        {5: command}, [(5, packed(command, 3, 2, 5, "", "GET /", "0af7651916cd43dd8448eb211c80319c"))]
    )
    ((path, _, span),) = encoded(one)
    assert (path, span.name) == ("/v1/traces", "GET /")
    assert span.trace_id.hex() == "0af7651916cd43dd8448eb211c80319c"


def test_the_roots_of_traces_are_limited() -> None:
    encoder = Encoder()
    encoder.roots.update(dict.fromkeys(range(1 << 40, (1 << 40) + (1 << 16) - 5000), 1))
    ends = [(6, packed(SPAN_END, k, 0, 5, "", 9)) for k in range(1, 10_001)]
    assert sum(1 for _ in encoder.requests(batch_of({6: SPAN_END}, ends))) == 5
    assert len(encoder.roots) == 1 << 16


def test_losses() -> None:
    losses = [Loss("user_events:a", "ring", 300), Loss(ANY, "away", None)]
    found = encoded(batch_of({}, [], losses=losses))
    assert [(scope, item.event_name, item.severity_number) for _, scope, item in found] == [
        ("utracefs", "utracefs.lost", 13)
    ] * 2
    assert [attributes(item) for _, _, item in found] == [
        {"event": "user_events:a", "cause": "ring", "count": 300},
        {"event": "*", "cause": "away"},
    ]


@pytest.mark.parametrize(
    ("records", "size"), [(1, 10**9), (7, 10**9), (10**9, 1), (10**9, 3000), (5, 900), (9, 2000)]
)
def test_requests_are_bounded(monkeypatch: pytest.MonkeyPatch, records: int, size: int) -> None:
    monkeypatch.setattr(otlp, "MAX_RECORDS", records)
    monkeypatch.setattr(otlp, "MAX_BYTES", size)
    commands = {5: "one u32 a", 6: SPAN_END, 7: "two __rel_loc char[] a"}
    made = []
    for n in range(60):
        id_ = (5, 5, 6, 7)[n % 4]
        values = {5: (n,), 6: (n, 0, 1, "", 5), 7: ("x" * n * 3,)}[id_]
        made.append((id_, packed(commands[id_], *values)))
    requests = list(Encoder().requests(batch_of(commands, made)))
    counts = dict.fromkeys(("one", "order_end", "two"), 0)
    for request in requests:
        assert request.items <= records
        assert request.items == 1 or len(request.body) <= size
        for event, n in request.counts.items():
            counts[event.removeprefix("user_events:")] += n
    assert counts == {"one": 30, "order_end": 15, "two": 15}
    found = [item for r in requests for _, item in items(KINDS["/" + r.path][0].FromString(r.body))]
    assert sorted(
        attributes(item).get("a", -1) for item in found if getattr(item, "event_name", "") == "one"
    ) == [n for n in range(60) if n % 4 < 2]


# The collector's answers


@pytest.fixture
def collector() -> Collector:
    return Collector()


def a_batch(n: int = 3, *, sequence: int = 1, losses: Sequence[Loss] = ()) -> Batch:
    return batch_of(
        {5: "e u32 a"}, [(5, packed("e u32 a", k)) for k in range(n)], sequence=sequence, losses=losses
    )


@pytest.fixture
def target(collector: Collector) -> Iterator[OtlpTarget]:
    with (
        collecting(collector) as port,
        contextlib.closing(OtlpTarget(f"otlp://127.0.0.1:{port}", Settings())) as target,
    ):
        yield target


def test_it_sends(collector: Collector, target: OtlpTarget) -> None:
    for sequence in range(1, 4):
        assert target.send([a_batch(sequence=sequence)]) == {}
    assert collector.arrived == {"e": 9}
    assert collector.connections == 1
    assert {headers["Content-Type"] for _, headers, _ in collector.requests} == {"application/x-protobuf"}


def test_an_invalid_batch(collector: Collector, target: OtlpTarget) -> None:
    """The records before the damage arrive, the rest is refused."""
    one = a_batch()
    assert target.send([attrs.evolve(one, body=one.body[:-30])]) == {"user_events:e": 1}
    assert collector.arrived == {"e": 2}


def test_compression_headers_and_a_path(collector: Collector, tmp_path: Path) -> None:
    (tmp_path / "headers").write_text("Authorization: Bearer abc\nX-Other: 1\n")
    settings = Settings({"compression": "gzip"}, secrets={"headers": str(tmp_path / "headers")})
    KINDS["/x/v1/logs"] = KINDS["/v1/logs"]
    with collecting(collector) as port:
        target = OtlpTarget(f"http://127.0.0.1:{port}/x/", settings)
        target.send([a_batch()])
        target.close()
    del KINDS["/x/v1/logs"]
    ((path, headers, _),) = collector.requests
    assert (path, headers["Authorization"], headers["X-Other"]) == ("/x/v1/logs", "Bearer abc", "1")
    assert headers["Content-Encoding"] == "gzip"


def test_partial_success_is_counted(collector: Collector, target: OtlpTarget) -> None:
    partial = logs_service.ExportLogsServiceResponse()
    partial.partial_success.rejected_log_records = 2
    partial.partial_success.error_message = "too old"
    collector.answer = lambda _path, _message: (202, {}, partial.SerializeToString())
    both = batch_of({5: "e u32 a", 6: "f u32 a"}, [(5, bytes(4)), (6, bytes(4))])
    assert target.send([a_batch(), a_batch(sequence=2)]) == {"user_events:e": 4}
    assert target.send([both]) == {ANY: 2}
    assert "refuses 2 of 2 records" in target.note
    partial.partial_success.rejected_log_records = -1
    assert target.send([a_batch(sequence=3)]) == {}
    partial.partial_success.rejected_log_records = 100
    assert target.send([a_batch(sequence=4)]) == {"user_events:e": 3}
    # Members may have any order, and others may be among them.
    members = b"\x12\x03\x08\x07x" + b"\x08\x02" + b"\x22\x01y"
    collector.answer = lambda _path, _message: (200, {}, b"\x18\x05" + b"\n\x0a" + members)
    assert target.send([a_batch(sequence=5)]) == {"user_events:e": 2}


@pytest.mark.parametrize(
    ("status", "answer"),
    [
        *(
            (200, answer)
            for answer in (b"\xff", b"{}", b"\x0a\xff\xff\xff\xff\x0f", b"\x0a\x01", b"\x0a\x00")
        ),
        *((status, b"") for status in (200, 201, 202, 204, 299)),
    ],
)
def test_any_answer_of_2xx_is_success(
    collector: Collector, target: OtlpTarget, status: int, answer: bytes
) -> None:
    collector.answer = lambda _path, _message: (status, {"Content-Type": "text/plain"}, answer)
    assert target.send([a_batch()]) == {}


@pytest.mark.parametrize("status", [400, 405, 413, 415, 500, 501])
def test_refused(collector: Collector, target: OtlpTarget, status: int) -> None:
    """A request, not the others."""

    def answer(path: str, _message: Any) -> Any:
        return (status, {}, b"") if path == "/v1/logs" else None

    collector.answer = answer
    one = batch_of({5: "e u32 a", 6: SPAN_END}, [(5, bytes(4)), (6, packed(SPAN_END, 1, 0, 5, "", 9))])
    assert target.send([one]) == {"user_events:e": 1}
    with pytest.raises(Refused, match=f"{status} .* from 127.0.0.1"):
        target.send([a_batch(losses=[Loss("x", "ring", 1)], sequence=2)])
    assert collector.arrived == {"order_end": 1}


def test_too_large_requests_are_halved(collector: Collector, target: OtlpTarget) -> None:
    """Until one record or loss is left, which is lost."""

    def answer(_path: str, message: Any) -> Any:
        one = [attributes(item) for _, item in items(message)]
        is_large = len(one) > 4 or any(item.get("a") == 13 or item.get("event") == "x7" for item in one)
        return (413, {}, b"") if is_large else None

    collector.answer = answer
    losses = [Loss(f"x{n}", "ring", n) for n in range(20)]
    batches = [a_batch(20, losses=losses[:9]), a_batch(10, sequence=2, losses=losses[9:])]
    assert target.send(batches) == {"user_events:e": 1, "x7": 7}
    said = r"records are refused: 413 Request Entity Too Large from 127\.0\.0\.1:\d+/v1/logs"
    assert re.fullmatch(said, target.note)
    mixed = [(5, packed("e u32 a", n)) if n % 2 else (6, packed(SPAN_END, n, 0, 5, "", n)) for n in range(30)]
    assert target.send([batch_of({5: "e u32 a", 6: SPAN_END}, mixed)]) == {"user_events:e": 1}
    assert collector.arrived == {"e": 29 + 14, "order_end": 15}
    assert collector.lost == {(f"x{n}", "ring"): n for n in range(20) if n != 7}


def test_losses_of_which_some_are_refused(collector: Collector, target: OtlpTarget) -> None:
    """The number of records is known for some losses and unknown for others."""
    partial = logs_service.ExportLogsServiceResponse()
    collector.answer = lambda _path, _message: (200, {}, partial.SerializeToString())
    losses = [Loss("x", "ring", 2), Loss("x", "spool", 3), Loss("y", "away", None)]
    for n, (number, wanted) in enumerate([(3, {"x": 5, "y": None}), (2, {ANY: None}), (0, {})]):
        partial.partial_success.rejected_log_records = number
        assert target.send([batch_of({}, [], losses=losses, sequence=n)]) == wanted


def test_many_losses_are_several_requests(collector: Collector, target: OtlpTarget) -> None:
    """If a later one is refused, the ones before have arrived."""
    losses = [Loss(f"user_events:e{n}", "away", 1) for n in range(2500)]
    collector.answer = lambda _path, message: (400, {}, b"") if len(items(message)) == 503 else None
    batches = [a_batch(losses=losses), a_batch(sequence=2, losses=losses[:3])]
    refused = target.send(batches)
    assert collector.lost.total() == 2000 and sum(n or 0 for n in refused.values()) == 503
    assert collector.arrived == {"e": 6}


def test_refused_losses(collector: Collector, target: OtlpTarget) -> None:
    """All batches are refused then, so none of their records may have arrived."""

    def answer(_path: str, message: Any) -> Any:
        is_loss = any(one.event_name == "utracefs.lost" for _, one in items(message))
        return (500, {}, b"") if is_loss else None

    collector.answer = answer
    batches = [a_batch(sequence=n, losses=[Loss("x", "ring", n)] if n > 1 else []) for n in (1, 2, 3)]
    with pytest.raises(Refused):
        target.send(batches)
    assert not collector.arrived
    collector.answer = lambda _path, _message: None
    assert target.send(batches) == {}
    assert collector.arrived == {"e": 9}
    assert collector.lost == {("x", "ring"): 5}


@pytest.mark.parametrize(
    ("status", "after", "delay"),
    [
        (429, "3", 3),
        (503, "Wed, 01 Jan 2020 00:00:00 GMT", 0),
        (502, "Fri, 01 Jan 2100 00:00:00 GMT", 300),
        (504, "soon", None),
        (503, "\u00b2", None),
        (503, "Fri, 01 Jan 0001 00:00:00 -9999", None),
        (503, None, None),
        (401, None, None),
        (403, None, None),
        (404, None, None),
        (308, None, None),
    ],
)
def test_later(
    collector: Collector, target: OtlpTarget, status: int, after: str | None, delay: float | None
) -> None:
    collector.answer = lambda _path, _message: (status, {} if after is None else {"Retry-After": after}, b"")
    with pytest.raises(TryAgain, match=str(status)) as later:
        target.send([a_batch()])
    assert later.value.after_s == delay
    collector.answer = lambda _path, _message: None
    assert target.send([a_batch()]) == {}
    assert collector.arrived == {"e": 3}


def test_accepted_requests_are_not_sent_again(
    collector: Collector, target: OtlpTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(otlp, "MAX_RECORDS", 2)
    left: list[Any] = [None, None, (503, {}, b""), None, (503, {}, b"")]
    collector.answer = lambda _path, _message: left.pop(0) if left else None
    one = a_batch(10)
    for _ in range(2):
        with pytest.raises(TryAgain):
            target.send([one])
    assert target.send([one]) == {}
    assert collector.arrived == {"e": 10}


def test_a_kept_connection_that_was_closed(collector: Collector, target: OtlpTarget) -> None:
    """A new one is made at once; a new one that is closed, too, is an error."""
    answers: list[Any] = [None, ConnectionError, None, ConnectionError, ConnectionError]

    def answer(_path: str, _message: Any) -> None:
        if answers and answers.pop(0) is ConnectionError:
            raise ConnectionError

    collector.answer = answer
    assert target.send([a_batch()]) == {}
    assert target.send([a_batch(sequence=2)]) == {}
    with pytest.raises(ConnectionError):
        target.send([a_batch(sequence=3)])


def test_a_lost_acknowledgement_repeats_the_records(collector: Collector, target: OtlpTarget) -> None:
    """OTLP has no way to tell that they were accepted: at least once."""
    collector.closes_after = 1
    with pytest.raises(ConnectionError):
        target.send([a_batch()])
    assert target.send([a_batch()]) == {}
    assert collector.arrived == {"e": 6}


def test_nobody_listens() -> None:
    with collecting(Collector()) as port:
        pass
    target = OtlpTarget(f"otlp://127.0.0.1:{port}", Settings())
    with pytest.raises(ConnectionRefusedError) as refused:
        target.send([a_batch()])
    assert refused.value.filename == f"127.0.0.1:{port}"
    target.close()


def test_a_collector_that_does_not_answer(collector: Collector) -> None:
    go_on = threading.Event()

    def answer(_path: str, _message: Any) -> None:
        go_on.wait(60)

    collector.answer = answer
    with collecting(collector) as port:
        target = OtlpTarget(f"otlp://127.0.0.1:{port}", Settings(timeout_s=0.2))
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            target.send([a_batch()])
        assert time.monotonic() - began < 10
        go_on.set()
        target.close()


@pytest.mark.parametrize(
    ("head", "part", "is_tls"),
    [
        (b"HTTP/1.1 200 OK\r\nX-A: ", b"a", False),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 60000\r\n\r\n", b"\n", False),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 60000\r\n\r\n", b"\n", True),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", b"a: b\r\n", False),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n", False),
        (b"", b"HTTP/1.1 103 Early Hints\r\n\r\n", False),
        (b"", b"\r\n", False),
    ],
)
def test_a_send_has_one_deadline(head: bytes, part: bytes, is_tls: bool, tmp_path: Path) -> None:
    settings = Settings(timeout_s=0.4)
    if is_tls:
        certificates(tmp_path)
        settings = attrs.evolve(settings, ca=str(tmp_path / "ca.pem"))

    def drip(sock: socket.socket) -> None:
        if is_tls:
            sock = server_context(tmp_path).wrap_socket(sock, server_side=True)
        with sock:
            while sock.recv(1 << 20)[-1:] == b"x":  # all but the last part of the request
                pass
            sock.sendall(head)
            while True:
                sock.sendall(part)
                time.sleep(0.05)

    scheme = "https" if is_tls else "http"
    with fake(drip) as at, contextlib.closing(OtlpTarget(f"{scheme}://{at}", settings)) as target:
        began = time.monotonic()
        with pytest.raises((TimeoutError, TryAgain)):
            target.send([a_batch()])
        assert time.monotonic() - began < 5


@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize("status", ["413 Too Large", "103 Hints\r\n\r\nHTTP/1.1 413 No"])
def test_an_answer_before_the_request_is_read(status: str, is_open: bool) -> None:
    """Also if the connection stays open, and nothing is read."""
    over = threading.Event()

    def talk(sock: socket.socket) -> None:
        sock.sendall(f"HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n".encode())
        if is_open:
            over.wait(60)
        else:
            sock.recv(100)
            sock.shutdown(socket.SHUT_RD)

    command = "e __rel_loc char[] text"
    large = batch_of({5: command}, [(5, packed(command, "x" * 60_000)) for _ in range(100)])
    settings = Settings(timeout_s=0.5)
    with fake(talk) as at, contextlib.closing(OtlpTarget(f"otlp://{at}", settings)) as target:
        with pytest.raises((TimeoutError, OSError)):
            target.send([large])
        over.set()
        assert len(target.pending) == 7  # the first one is halved; nobody answers the next one


def test_not_http() -> None:
    def talk(sock: socket.socket) -> None:
        sock.recv(100_000)
        sock.sendall(b"220 mail.example.org ESMTP " + b"x" * 99 + b"\r\n")

    with (
        fake(talk) as at,
        contextlib.closing(OtlpTarget(f"otlp://{at}", Settings())) as target,
        pytest.raises(TryAgain, match=r"does not speak HTTP: .{60}$"),
    ):
        target.send([a_batch()])


@pytest.mark.parametrize(
    ("address", "settings", "reason"),
    [
        ("otlp:", Settings(), "not otlp://HOST:PORT"),
        ("otlp://", Settings(), "not otlp://HOST:PORT"),
        ("otlp://x:99999", Settings(), "Port out of range"),
        ("otlp://x:y", Settings(), "Port could not be cast"),
        ("http://u:p@x", Settings(), "not http://HOST:PORT"),
        ("http://x?a", Settings(), "not http://HOST:PORT"),
        ("otlp://x", Settings(ca="x"), "need https://"),
        (
            "otlp://x",
            Settings({"a": "b"}),
            "no option 'a' of otlp; there are: compression, metrics, service.name",
        ),
        ("otlp://x", Settings({"compression": "zip"}), "compression is none or gzip, not 'zip'"),
        ("otlp://x", Settings({"metrics": "-1"}), "option metrics: '-1' is not a time: 90s"),
    ],
)
def test_mistakes(address: str, settings: Settings, reason: str) -> None:
    with pytest.raises(ValueError) as refused:
        open_target(address, settings)
    assert reason in str(refused.value)


@pytest.mark.parametrize("text", ["no colon", "näme: x", "a: x\x01y"])
def test_mistakes_in_headers_are_not_shown(tmp_path: Path, text: str) -> None:
    (tmp_path / "headers").write_text(text)
    with pytest.raises(ValueError, match="a line is not `Name: value`") as refused:
        OtlpTarget("otlp://x", Settings(secrets={"headers": str(tmp_path / "headers")}))
    assert text not in str(refused.value)


# TLS


def server_context(folder: Path, *, wants_client: bool = False) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem", folder / "server.key")
    if wants_client:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(folder / "ca.pem")
    return context


def test_tls(collector: Collector, tmp_path: Path) -> None:
    certificates(tmp_path)
    with collecting(collector, server_context(tmp_path)) as port:
        address = f"https://127.0.0.1:{port}"
        target = OtlpTarget(address, Settings(ca=str(tmp_path / "ca.pem")))
        assert target.send([a_batch()]) == {}
        target.close()
        stranger = OtlpTarget(address, Settings())
        with pytest.raises(ssl.SSLError, match="CERTIFICATE_VERIFY_FAILED"):
            stranger.send([a_batch()])
        stranger.close()
    assert collector.arrived == {"e": 3}


def test_client_certificates_are_read_anew(collector: Collector, tmp_path: Path) -> None:
    certificates(tmp_path)
    certificates(tmp_path, name="client", days="0")
    paths = [str(tmp_path / name) for name in ("ca.pem", "client.pem", "client.key")]
    with collecting(collector, server_context(tmp_path, wants_client=True)) as port:
        target = OtlpTarget(f"https://127.0.0.1:{port}", Settings(ca=paths[0], cert=paths[1], key=paths[2]))
        with pytest.raises(OSError):
            target.send([a_batch()])
        certificates(tmp_path, name="client")
        assert target.send([a_batch()]) == {}
        target.close()
    assert collector.arrived == {"e": 3}
