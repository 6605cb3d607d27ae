"""Values of every type through a real daemon and back: by ring and by socket; while the event is off none."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import utracefs
from tests.client.daemons.fake_daemon import wait_for
from tests.integration.conftest import DaemonProcess, running
from utracefs import Session


def every_type(
    a: utracefs.u8,
    b: utracefs.u16,
    c: utracefs.u32,
    d: utracefs.u64,
    e: utracefs.s8,
    f: utracefs.s16,
    g: utracefs.s32,
    h: int,
    i: float,
    j: utracefs.f32,
    k: bool,
    l: str,
    m: bytes,
    n: Annotated[str, 8],
    o: Annotated[bytes, 8],
    p: Annotated[Sequence[utracefs.u16], 3],
    q: Annotated[Sequence[int], 2],
    r: Annotated[Sequence[float], 2],
    s: Annotated[Sequence[utracefs.f32], 2],
    t: Annotated[Sequence[bool], 2],
) -> None: ...


def integers(bits: int, *, signed: bool) -> st.SearchStrategy[int]:
    least = -(1 << bits - 1) if signed else 0
    return st.integers(least, least + (1 << bits) - 1)


ARRAYS: dict[str, Any] = {"p": (1, 2, 3), "q": [1, 2], "r": range(2), "s": [1, 2], "t": [True, False]}

TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
ROWS = st.lists(
    st.tuples(
        *(integers(bits, signed=False) for bits in (8, 16, 32, 64)),
        *(integers(bits, signed=True) for bits in (8, 16, 32, 64)),
        st.floats(),
        st.floats(width=32),
        st.booleans(),
        TEXT,
        st.binary(max_size=100),
        TEXT.filter(lambda text: len(text.encode()) <= 8),
        st.binary(min_size=8, max_size=8),
        *(
            st.lists(one, min_size=count, max_size=count)
            for count, one in (
                (3, integers(16, signed=False)),
                (2, integers(64, signed=True)),
                (2, st.floats()),
                (2, st.floats(width=32)),
                (2, st.booleans()),
            )
        ),
    ),
    min_size=1,
    max_size=20,
)


@pytest.fixture(params=["ring", "socket"])
def utracefsd(
    request: pytest.FixtureRequest, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[DaemonProcess]:
    monkeypatch.setenv("UTRACEFS_DATA_RING", "1" if request.param == "ring" else "0")
    with running(directory) as process:
        yield process


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ROWS)
def check(session: Session, stream: utracefs.Stream, rows: list[tuple[Any, ...]]) -> None:
    event = utracefs.define(every_type, session=session)
    for row in rows:
        event.emit(*row)
    assert session.flush(60)
    # (In repr a NaN equals itself, -0.0 is not 0.0, and True not 1.)
    assert repr([tuple(r.fields.values()) for r in islice(stream, len(rows))]) == repr(rows)


def test_through_a_daemon(utracefsd: DaemonProcess, new_session: Callable[..., Session]) -> None:
    session = new_session()
    event = utracefs.define(every_type, session=session)
    with utracefs.attach("every_type", directory=utracefsd.directory, timeout_s=20) as stream:
        wait_for(lambda: event.registered and event)
        check(session, stream)
        event.emit(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, k=True, l="l", m=b"", n="", o=b"", **ARRAYS)
        assert session.flush(60)
        assert list(next(stream).fields.values())[8:12] == [9.0, 10.0, True, "l"]
        event.emit(0, 1, 2, 3, 4, 5, 6, 7, -0.0, 0.5, False, "", b"", "", b"", **ARRAYS)
        assert session.flush(60)
        columns = next(stream.batches()).columns()["user_events:every_type"]
        assert repr([list(columns[name]) for name in "ijk"]) == "[[-0.0], [0.5], [False]]"
        assert (columns["p"], columns["s"]) == ([[1, 2, 3]], [[1.0, 2.0]])
    wait_for(lambda: not event)
    event.emit(1, 2, 3, 4, 5, 6, 7, 8, 9.5, 10.5, True, "l", b"", "", b"", **ARRAYS)
    assert (session.stats().refused, event.lost) == (0, 0)
