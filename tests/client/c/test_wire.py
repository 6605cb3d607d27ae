"""wire.c against the protocol package, and against bytes that no daemon sends; under a sanitizer."""

from __future__ import annotations

from collections.abc import Iterator

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.client.c.building import sanitized
from tests.client.c.programs import Program, started
from utracefs_protocol.connection import encode_notification, encode_response


@pytest.fixture(scope="module")
def wire() -> Iterator[Program]:
    with started(sanitized("wire")) as program:
        yield program


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("status", [0, 0, "mmap_status", []]),
        ("notify", [0, 300, "notify_enablers", [{}]]),
        ("ring", [0, 70000, "adopt_ring", [{"early": 1}]]),
        (
            "register",
            [
                0,
                2**32 - 1,
                "DIAG_IOCSREG",
                [{"name_args": "name u32 a; u32 b; u32 c; u32 d", "write_index": 300}],
            ],
        ),
        (
            "token",
            [
                0,
                5,
                "DIAG_IOCSREG",
                [{"name_args": "name u32 a", "flags": 2, "event_id": 9, "enable_token": 2**63 - 1}],
            ],
        ),
        ("delete", [0, 5, "DIAG_IOCSDEL", ["name"]]),
        ("unregister", [0, 5, "DIAG_IOCSUNREG", [{"disable_token": 200}]]),
        ("written", [2, "enablers_written", [70000]]),
    ],
)
def test_requests(wire: Program, what: str, message: list[object]) -> None:
    written = bytes.fromhex(wire.ask(f"put {what}"))
    assert msgpack.unpackb(written) == message
    assert written == msgpack.packb(message)  # the shortest forms


def test_a_request_that_does_not_fit_is_not_begun(wire: Program) -> None:
    assert wire.ask("put full") == "failed"


MESSAGES = [
    (encode_response(7, {"size": 4096}), "response 7 0 0 0 0"),
    (msgpack.packb([1, 7, [98, "no room"], None]), "response 7 98 0 0 0 no room"),
    (msgpack.packb([1, 7, [22, "x" * 1000], None]), f"response 7 22 0 0 0 {'x' * 159}"),
    (encode_notification("write_error", [9, -1, 5]), "write_error 0 9 -1 5 0"),
    (encode_notification("error", [24, "too many"]), "error 0 24 0 0 0 too many"),
    (
        encode_notification("enablers_changed", [2**40, [[1, 0], [2**63 - 1, 1]]]),
        f"enablers_changed 0 0 0 0 {2**40} 1=0 9223372036854775807=1",
    ),
    (encode_notification("something_new", [{"a": [1.5, None, True]}]), "unknown 0 0 0 0 0"),
    (msgpack.packb([3, "x"]), "broken"),
    (msgpack.packb([1, 7, 5, None]), "broken"),
    (msgpack.packb([1, -7, None, None]), "broken"),
    (msgpack.packb({"a": 1}), "broken"),
    (encode_notification("enablers_changed", [1, [[1, 2]]]), "enablers_changed 0 0 0 0 1 broken"),
]


@pytest.mark.parametrize(("message", "text"), MESSAGES, ids=range(len(MESSAGES)))
def test_messages(wire: Program, message: bytes, text: str) -> None:
    for size in range(len(message)):
        assert wire.number(f"size {message[:size].hex()}") == 0
    assert wire.number(f"size {message.hex()}c0c0") == len(message)
    assert wire.ask(f"parse {message.hex()}") == text.strip()


ABSENT = 2**32 - 1


def registered(wire: Program, token: int, result: object) -> str:
    return wire.ask(f"registered {token} {msgpack.packb(result).hex()}")


def test_results(wire: Program) -> None:
    result = {
        "status_index": 3,
        "write_index": 2,
        "id": 20,
        "size": 12,
        "locs": [[4, 3], [8, 1, "new"]],
        "new": [1],
    }
    assert registered(wire, 0, result) == f"3 2 20 12 {ABSENT} 4:3 8:1"
    assert registered(wire, 0, {"status_index": 3, "write_index": 2, "id": 20}) == f"3 2 20 0 {ABSENT}"
    assert registered(wire, 1, {"status_index": 3, "enabled": 1, "id": 20}) == f"3 {ABSENT} 20 0 1"
    broken: object
    for broken in (
        {**result, "status_index": 0},
        {**result, "write_index": -1},
        {**result, "locs": [[9, 1]]},  # outside of the fixed fields
        {**result, "locs": [[0, 0]] * 129},
        {**result, "size": "12"},
        {"status_index": 3},
        [],
    ):
        assert registered(wire, 0, broken) == "broken"
    assert registered(wire, 1, result) == "broken"
    assert wire.ask(f"mapped {msgpack.packb({'version': 2, 'size': 2**40}).hex()}") == str(2**40)
    assert wire.ask(f"mapped {msgpack.packb({'version': 2}).hex()}") == "broken"


OBJECTS = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@settings(max_examples=200)
@given(OBJECTS, st.binary(max_size=3))
def test_sizes_of_objects(wire: Program, value: object, behind: bytes) -> None:
    packed = msgpack.packb(value)
    assert wire.number(f"size {(packed + behind).hex()}") == len(packed)
    assert wire.number(f"size {packed[:-1].hex()}") == 0


@settings(max_examples=300)
@given(
    st.binary(max_size=60)
    | st.sampled_from([message for message, _ in MESSAGES]).flatmap(
        lambda message: st.tuples(st.integers(0, len(message) - 1), st.binary(min_size=1, max_size=4)).map(
            lambda change: message[: change[0]] + change[1] + message[change[0] + len(change[1]) :]
        )
    )
)
def test_no_bytes_do_harm(wire: Program, data: bytes) -> None:
    """It answers; the sanitizer sees that it reads nothing after them."""
    assert wire.ask(f"size {data.hex()}")
    assert wire.ask(f"parse {data.hex()}")
    assert wire.ask(f"registered 0 {data.hex()}")
    assert wire.ask(f"registered 1 {data.hex()}")
    assert wire.ask(f"mapped {data.hex()}")
