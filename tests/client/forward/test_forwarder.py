"""The forwarder between a real daemon and targets that answer, fail, refuse, hang; restarts of both."""

from __future__ import annotations

import contextlib
import json
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.client.daemons.fake_daemon import wait_for
from tests.client.forward.kit import EVENT, Store
from tests.client.recordings.event_header.event_headers import FIELDS, NAME
from tests.integration.conftest import DaemonProcess, running
from utracefs import Session
from utracefs.forward import forwarder as forwarder_module
from utracefs.forward.batch import Batch
from utracefs.forward.forwarder import STATUS_FILE, Forwarder, Wanted
from utracefs.forward.losses import ANY
from utracefs.forward.policy import Policy
from utracefs.forward.spool import MIN_SIZE, Spool
from utracefs.forward.target import Refused, Sent, TryAgain
from utracefs.streaming import Stream
from utracefs.tree.tracefs import Tracefs

WAIT_S = 30


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forwarder_module, "GATHER_S", 0.02)
    monkeypatch.setattr(forwarder_module, "BACK_OFF_S", (0.001, 0.01))
    monkeypatch.setattr(forwarder_module, "WAIT_FOR_DAEMON_S", 0.02)


Forward = Callable[..., contextlib.AbstractContextManager[Forwarder]]


@pytest.fixture
def forward(directory: Path, tmp_path: Path) -> Forward:
    """Runs while the context lasts, then ends in order."""

    @contextlib.contextmanager
    def forward(
        target: Any,
        *,
        spool_size: int = MIN_SIZE,
        policy: Policy | None = None,
        tell: Callable[[str], None] = lambda _: None,
        waits: bool = True,
        ring_bytes: int = forwarder_module.RING_BYTES,
        **options: Any,
    ) -> Iterator[Forwarder]:
        wanted = Wanted(**{"events": ["work*"], "directory": str(directory), **options})
        spool = Spool(tmp_path / "spool", spool_size)
        made = Forwarder(
            target, spool, wanted, policy=policy, drain_s=WAIT_S, tell=tell, ring_bytes=ring_bytes
        )
        thread = threading.Thread(target=made.run)
        thread.start()
        try:
            wait_for(lambda: not waits or made.status()["attached"] or not thread.is_alive(), WAIT_S)
            yield made
        finally:
            made.stop()
            thread.join()
            spool.close()

    return forward


Emit = Callable[..., None]


@pytest.fixture
def emit(utracefsd: DaemonProcess, new_session: Callable[..., Session]) -> Emit:
    """By a program of the daemon."""
    session: list[Session] = []

    def emit(*numbers: int, name: str = "work") -> None:
        session[:] = session or [new_session()]
        event = session[0].event(f"{name} u32 a")
        wait_for(lambda: event.registered and event, WAIT_S)
        for number in numbers:
            event.emit(number)
        assert session[0].flush(60)

    return emit


def test_records_arrive(forward: Forward, new_session: Callable[..., Session], emit: Emit) -> None:
    store = Store()
    with forward(store, events=["work*"]):
        session = new_session()
        emit(*range(100))
        wait_for(lambda: store.sum == 100, WAIT_S)
        emit(1, 2, name="work_more")
        wait_for(lambda: not session.event("other u32 a"))
    assert store.arrived == {EVENT: 100, "user_events:work_more": 2}
    assert not store.lost
    numbers = [
        record.fields["a"] for one in store.batches.values() for record in one if record.name == "work"
    ]
    assert numbers == list(range(100))
    one = next(iter(store.batches.values()))
    assert (
        one.host and one.boot_id and abs(one.unix_offset_ns + one.first_ns - one.clock.unix_ns) < 60 * 10**9
    )


def test_sending_waits_while_the_ring_fills(
    forward: Forward, monkeypatch: pytest.MonkeyPatch, emit: Emit
) -> None:
    """It would keep the reader from the interpreter: records would be lost that the spool has room for."""
    monkeypatch.setattr(forwarder_module, "_LOOK_S", 3.0)
    may_store = threading.Semaphore(1)
    append = Spool.append

    def held(spool: Spool, batch: Batch) -> bool:
        assert may_store.acquire(timeout=WAIT_S)
        return append(spool, batch)

    monkeypatch.setattr(Spool, "append", held)
    store = Store()
    with forward(store, ring_bytes=4 << 20, spool_size=64 << 20) as made:
        emit(0)
        wait_for(lambda: store.sum == 1, WAIT_S)
        emit(1)
        wait_for(lambda: made.status()["records_read"] == 2, WAIT_S)
        for _ in range(12):
            emit(*range(5000))
        may_store.release(1 + 5)  # then one of 2.3 MiB is being stored
        wait_for(lambda: made.status()["records_read"] > 5000, WAIT_S)
        time.sleep(0.2)
        assert store.sum <= 2 + 1000, "more than the batch that was waited for"
        may_store.release(100)
        wait_for(lambda: store.sum == 60_002, WAIT_S)


def test_an_event_with_other_fields(
    utracefsd: DaemonProcess,
    forward: Forward,
    new_session: Callable[..., Session],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its records under both ids, in one batch, count."""
    store = Store()
    is_emitted = threading.Event()
    append = Spool.append

    def later(spool: Spool, batch: Batch) -> bool:
        assert is_emitted.wait(WAIT_S)
        return append(spool, batch)

    monkeypatch.setattr(Spool, "append", later)
    enable = "instances/web/events/user_events/work/enable"
    with Tracefs(utracefsd.directory) as tree:
        tree.mkdir("instances/web")
        with forward(store, instances=["web"]):
            for declaration in ("work u32 a", "work u64 a", "work u16 a"):
                session = new_session()
                event = session.event(declaration)
                wait_for(lambda: b"work" in tree.read_file("available_events"), WAIT_S)
                tree.write_file(enable, b"1\n")
                wait_for(event.__bool__, WAIT_S)
                event.emit(5)
                assert session.flush(60)
                session.close()
                tree.write_file(enable, b"0\n")
                wait_for(lambda: b"work" not in tree.read_file("available_events"), WAIT_S)
            is_emitted.set()
    assert any(len(one.events) > 1 for one in store.batches.values())
    assert store.arrived == {EVENT: 3}
    assert sum(len(list(one)) for one in store.batches.values()) == 3


def test_filter_of_event_header(
    utracefsd: DaemonProcess, forward: Forward, new_session: Callable[..., Session]
) -> None:
    """By the tracepoint's eight fields, in the daemon: nothing else leaves the host."""
    store = Store()
    with forward(store, events=[NAME.decode()], filter="level <= 3"):
        session = new_session()
        event = session.event(f"{NAME.decode()} {FIELDS.decode()}")
        wait_for(lambda: event.registered and event, WAIT_S)
        for level in range(6):
            event.emit(2, 0, 0, 0, 0, level)
        assert session.flush(60)
    assert store.arrived == {f"user_events:{NAME.decode()}": 4}


def test_a_target_that_fails_at_random(forward: Forward, emit: Emit) -> None:
    rnd = random.Random(5)
    answers: list[Callable[[], Sent]] = [
        dict,
        lambda: {EVENT: 1},
        lambda: _raise(TryAgain("busy", 0.001)),
        lambda: _raise(ConnectionResetError("gone")),
        lambda: _raise(Refused("no")),
    ]

    def before(batches: Sequence[Batch]) -> Sent:
        answer = rnd.choice(answers)
        return {} if answer is answers[1] and not batches[0].counts else answer()

    store = Store(before)
    emitted = 0
    with forward(store, spool_size=64 << 20):
        for _ in range(30):
            n = rnd.randrange(1, 3000)
            emit(*range(n))
            emitted += n
        wait_for(lambda: store.batches, WAIT_S)
        store.before = lambda _: {}
    assert store.sum == emitted
    assert store.repeated == 0
    assert {cause for _, cause in store.lost} == {"refused"}


def test_a_target_with_a_defect(forward: Forward, emit: Emit) -> None:
    """It may have stored some of the batches: an unknown number is lost."""
    store = Store(lambda batches: _raise(RuntimeError("a defect")) if batches[0].counts else {})
    with forward(store):
        emit(*range(10))
    losses = {(loss.event, loss.cause, loss.count) for one in store.batches.values() for loss in one.losses}
    assert losses == {(EVENT, "refused", None)}


def _raise(error: Exception) -> Sent:
    raise error


def test_a_slow_target_and_a_full_spool(forward: Forward, emit: Emit) -> None:
    go_on = threading.Event()

    def before(_: Sequence[Batch]) -> Sent:
        go_on.wait(WAIT_S)
        return {}

    store = Store(before)
    emitted = 0
    with forward(store) as forwarder:
        while not forwarder.status()["lost"]:
            emit(*range(5000))
            emitted += 5000
        go_on.set()
    assert store.sum == emitted
    assert store.lost[EVENT, "spool"] > 0
    assert store.batches


def test_what_was_not_sent_is_sent_by_the_next(
    forward: Forward, monkeypatch: pytest.MonkeyPatch, emit: Emit
) -> None:
    away = Store(lambda _: _raise(ConnectionRefusedError("away")))
    with forward(away) as forwarder:
        emit(*range(10))
        wait_for(lambda: forwarder.status()["last_error"], WAIT_S)
        forwarder.drain_s = 0.1  # type: ignore[misc]
    assert not away.batches
    assert "away" in json.loads((forwarder.spool.directory / STATUS_FILE).read_text())["last_error"]
    store = Store()
    with forward(store):
        emit(1, 2)
    assert store.arrived == {EVENT: 12}
    assert not store.lost


def test_it_ends_while_programs_emit(
    utracefsd: DaemonProcess,
    forward: Forward,
    new_session: Callable[..., Session],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It reads for a tenth of a second, and sends all that it has read."""
    monkeypatch.setattr("utracefs.forward.forwarder._END_S", 2 * WAIT_S)
    store = Store()
    event = new_session().event("work u32 a")
    is_over = threading.Event()

    def emit_all_the_time() -> None:
        while not is_over.wait(0.005):
            event.emit(1)

    with forward(store) as forwarder:
        wait_for(lambda: event.registered and event, WAIT_S)
        emitting = threading.Thread(target=emit_all_the_time)
        emitting.start()
        try:
            wait_for(lambda: store.sum, WAIT_S)
            forwarder.stop()
            assert forwarder.read_over.wait(WAIT_S)
        finally:
            is_over.set()
            emitting.join()
    assert store.sum == forwarder.status()["records_read"]


def test_the_end_reads_all_that_is_in_the_ring(
    forward: Forward, monkeypatch: pytest.MonkeyPatch, emit: Emit
) -> None:
    """Also if that takes longer than a tenth of a second."""
    store = Store()
    append = Spool.append
    late = [[3, 4], [2]]

    def slow(spool: Spool, batch: Batch) -> bool:
        stored = append(spool, batch)
        forwarder.stop()
        if late:
            emit(*late.pop())
            time.sleep(0.2)
        return stored

    monkeypatch.setattr(Spool, "append", slow)
    with forward(store) as forwarder:
        emit(1)
        wait_for(lambda: not late, WAIT_S)
    assert store.arrived == {EVENT: 4}


def test_a_restart_of_the_daemon_without_its_state(utracefsd: DaemonProcess, forward: Forward) -> None:
    """No program is connected, so it is removed; and no record is behind it."""
    store = Store()
    with forward(store):
        utracefsd.stop()
        utracefsd.start()
        wait_for(lambda: (ANY, "away") in store.lost, WAIT_S)


def test_a_kill_just_after_it_is_attached(
    utracefsd: DaemonProcess, forward: Forward, monkeypatch: pytest.MonkeyPatch, emit: Emit
) -> None:
    """Records emitted until the next daemon runs are reported as lost."""
    resume = Forwarder._resume
    is_killed = threading.Event()

    def killed(forwarder: Forwarder, stream: Stream) -> None:
        if not is_killed.is_set():
            emit(1)
            utracefsd.stop(kill=True)
            is_killed.set()
        resume(forwarder, stream)

    monkeypatch.setattr(Forwarder, "_resume", killed)
    store = Store()
    with forward(store):
        assert is_killed.wait(WAIT_S)
        utracefsd.start()
        wait_for(lambda: (EVENT, "away") in store.lost or (ANY, "away") in store.lost, WAIT_S)


def test_it_waits_for_the_daemon(
    directory: Path, forward: Forward, new_session: Callable[..., Session]
) -> None:
    told: list[str] = []
    store = Store()
    with forward(store, tell=told.append, waits=False) as forwarder:
        wait_for(lambda: told, WAIT_S)
        assert "waiting for it" in told[0]
        with running(directory):
            wait_for(lambda: forwarder.status()["attached"], WAIT_S)
            event = new_session().event("work u32 a")
            wait_for(lambda: event.registered and event, WAIT_S)
            event.emit(1)
            wait_for(lambda: store.sum == 1, WAIT_S)


def test_the_policy(forward: Forward, tmp_path: Path, emit: Emit) -> None:
    store = Store()
    with forward(store, policy=Policy(("work",), 100)):
        emit(*range(1000))
        emit(1, name="work_secret")
    assert store.arrived[EVENT] >= 100
    assert store.arrived[EVENT] + store.lost[EVENT, "limit"] == 1000
    assert store.arrived.keys() == {EVENT}
    stored = b"".join(path.read_bytes() for path in (tmp_path / "spool").iterdir())
    assert b"work" in stored and b"secret" not in stored


def test_a_policy_with_a_misspelt_field(forward: Forward, emit: Emit) -> None:
    told: list[str] = []
    store = Store()
    with forward(store, policy=Policy(fields={"work": {"b": "redact"}}), tell=told.append):
        emit(1, 2)
        emit(3, name="work_more")
        wait_for(lambda: store.sum == 3, WAIT_S)
    assert store.lost == {(EVENT, "policy"): 2} and store.arrived.total() == 1
    assert told == [f"{EVENT} has no field b, which the policy hides: its records do not leave"]


def test_a_hostile_name_of_the_host(tmp_path: Path) -> None:
    """Which any administrator of a container may set."""
    with contextlib.closing(Spool(tmp_path / "spool", MIN_SIZE)) as spool:
        made = Forwarder(Store(), spool, Wanted(), host="b\udcff\nx" + "h" * 300)
        assert made.host == "bx" + "h" * 253


def test_an_invalid_filter_ends_it(utracefsd: DaemonProcess, directory: Path, tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool", MIN_SIZE)
    forwarder = Forwarder(Store(), spool, Wanted(["work"], filter="((", directory=str(directory)))
    try:
        with pytest.raises(OSError):
            forwarder.run(60)
    finally:
        spool.close()


def test_the_status(forward: Forward, emit: Emit) -> None:
    store = Store()
    with forward(store) as forwarder:
        emit(1, 2, 3)
        wait_for(lambda: forwarder.status()["records_sent"] == 3, WAIT_S)
        status = forwarder.status()
    assert status["records_read"] == 3
    assert status["lag_s"] == status["spool_bytes"] == 0
    stored = json.loads((forwarder.spool.directory / STATUS_FILE).read_text())
    assert stored.keys() == status.keys()
    assert stored["records_sent"] == 3
