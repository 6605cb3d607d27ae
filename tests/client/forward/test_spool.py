"""The spool: order, restarts, damage at any byte, a full spool, a full disk, two users."""

from __future__ import annotations

import errno
import json
import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.client.forward.kit import EVENT, LIMITS, batch
from utracefs.forward.batch import Batch, Formats
from utracefs.forward.losses import ANY, Loss, Marks, Selection
from utracefs.forward.spool import MIN_SIZE, SEGMENTS, Spool, Sync, _entries
from utracefs.forward.target import Limits
from utracefs.recordings.origin import ClockPair
from utracefs_protocol.messages.tracefs import Missed, StreamMissed


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    spool = Spool(tmp_path / "spool", MIN_SIZE)
    yield spool
    spool.close()


def again(spool: Spool) -> Spool:
    """As the next process sees it after a kill -9 of this one: without `close`."""
    spool._is_closed = True
    os.close(spool._lock)
    os.close(spool._acked_file)
    if spool._file >= 0:
        os.close(spool._file)
    return Spool(spool.directory, spool.size)


def numbers(batches: list[Batch]) -> list[int]:
    return [record.fields["a"] for one in batches for record in one]


def take(spool: Spool, limits: Limits = LIMITS) -> list[Batch]:
    return spool.take(limits, 0)


def test_batches_come_in_their_order(spool: Spool) -> None:
    for n in range(5):
        assert spool.append(batch([n]))
    found = take(spool)
    assert numbers(found) == [0, 1, 2, 3, 4]
    assert [(one.sequence, one.forwarder) for one in found] == [(n, spool.forwarder) for n in range(1, 6)]
    assert take(spool) == [] and not spool.is_empty
    spool.done()
    assert spool.is_empty


def test_the_limits_of_a_target(spool: Spool) -> None:
    for n in range(5):
        spool.append(batch([n, n]))
    assert [len(take(spool, Limits(4, 10**6))), len(take(spool, Limits(1, 10**6)))] == [2, 1]
    assert len(take(spool, Limits(100, 1))) == 1


def test_it_gathers(spool: Spool) -> None:
    limits = Limits(3, 10**6, gather_s=100)
    spool.append(batch([1]))
    assert take(spool, limits)  # its time is that of 2001
    spool.done()
    now = ClockPair(0, time.time_ns())
    for n in range(3):
        assert spool.take(limits, 0) == []
        spool.append(attrs.evolve(batch([n]), clock=now))
    assert len(spool.take(limits, 0)) == 3
    spool.done()
    spool.append(attrs.evolve(batch([1]), clock=now))
    assert spool.take(limits, 0) == []
    assert spool.take(limits, 0, at_once=True)


def test_a_second_user_is_refused(spool: Spool) -> None:
    with pytest.raises(OSError, match="another forwarder uses this spool") as refused:
        Spool(spool.directory, MIN_SIZE)
    assert refused.value.errno == errno.EBUSY


def test_a_restart_sends_what_was_not_done(spool: Spool) -> None:
    assert spool.is_new
    for n in range(4):
        spool.append(batch([n]))
    take(spool, Limits(2, 10**6))
    spool.done()
    assert numbers(take(spool, Limits(1, 10**6))) == [2]
    spool.lose(EVENT, "ring", 9)
    spool = again(spool)
    assert not spool.is_new
    assert numbers(take(spool)) == [2, 3]
    spool.done()
    spool.append(batch([4]))
    (found,) = take(spool)
    assert (found.sequence, found.losses) == (5, [])  # that loss was in memory alone
    spool.close()


def test_losses_survive_until_they_are_in_a_batch(spool: Spool) -> None:
    forwarder = spool.forwarder
    spool.append(batch([1]))
    take(spool)
    spool.done({EVENT: 1})
    spool = again(spool)
    assert spool.append(batch([2]))
    spool = again(spool)
    assert spool.append(batch([3]))
    found = take(spool)
    assert [(one.sequence, list(one.losses)) for one in found] == [(2, [Loss(EVENT, "refused", 1)]), (3, [])]
    assert spool.forwarder == forwarder
    spool.close()


def test_all_refused(spool: Spool) -> None:
    spool.lose(EVENT, "ring", 3)
    spool.append(batch([1, 2]))
    take(spool)
    spool.done(all_refused=True)
    spool.append(batch([]))
    (found,) = take(spool)
    assert {(one.cause, one.count) for one in found.losses} == {("ring", 3), ("refused", 2)}


def test_unknown_what_the_target_has(spool: Spool) -> None:
    spool.lose("other", "ring", 3)
    spool.append(batch([1, 2]))
    take(spool)
    spool.done(is_unknown=True)
    spool.append(batch([]))
    (found,) = take(spool)
    assert {(one.event, one.cause, one.count) for one in found.losses} == {
        (EVENT, "refused", None),
        ("other", "refused", None),
    }


def test_a_full_spool_drops_the_oldest(spool: Spool) -> None:
    big = 20_000
    spool.append(batch([0], pad=big))
    assert numbers(take(spool)) == [0]  # in flight, so it stays
    for n in range(1, 200):
        assert spool.append(batch([n], pad=big))
        assert spool.used_bytes <= spool.size
    spool.done()
    found = []
    while batches := take(spool):
        found += batches
        spool.done()
    kept = numbers(found)
    assert kept == [
        *range(1, len([k for k in kept if k < 100]) + 1),
        *kept[len([k for k in kept if k < 100]) :],
    ]
    lost = sum(loss.count or 0 for one in found for loss in one.losses)
    assert {(loss.event, loss.cause) for one in found for loss in one.losses} == {(EVENT, "spool")}
    assert lost + len(kept) + 1 == 200
    assert len(kept) > (SEGMENTS - 3) * (MIN_SIZE // SEGMENTS) // (big + 1000)
    assert kept[-1] == 199
    assert spool.lost == {EVENT: {"spool": lost}}


@pytest.mark.parametrize("is_removed", [False, True])
def test_killed_while_the_oldest_are_dropped(
    spool: Spool, monkeypatch: pytest.MonkeyPatch, is_removed: bool
) -> None:
    """Their records are counted once."""
    remove = os.unlink
    emitted = 0

    def killed(path: Path) -> None:
        if is_removed:
            remove(path)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", killed)
        with pytest.raises(KeyboardInterrupt):
            while True:
                spool.append(batch([emitted], pad=10_000))
                emitted += 1
    spool = again(spool)
    spool.append(batch([emitted]))
    found = take(spool)
    lost = {(loss.event, loss.cause): loss.count for loss in found[-1].losses}
    first = numbers(found)[0]
    assert first > 1 and lost == {(EVENT, "spool"): first}
    assert numbers(found) == [*range(first, emitted + 1)]
    spool.close()


def test_a_batch_that_is_larger_than_the_spool(spool: Spool) -> None:
    assert not spool.append(batch([1, 2], pad=2 * MIN_SIZE))
    assert spool.append(batch([3]))
    (found,) = take(spool)
    assert found.losses == [Loss(EVENT, "spool", 2)]


@pytest.mark.parametrize("sync", list(Sync))
def test_a_full_disk(tmp_path: Path, sync: Sync, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = Spool(tmp_path / "spool", MIN_SIZE, sync)
    assert spool.append(batch([1]))
    write = os.pwrite

    def full(fd: int, data: bytes, offset: int) -> int:
        """Takes some bytes, then none."""
        if len(data) > 20:
            return write(fd, data[:20], offset)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        assert not spool.append(batch([2]))
        assert not spool.append(batch([3, 4]))
    assert "No space left" in spool.error
    assert spool.append(batch([5]))
    assert not spool.error
    spool.sync()
    found = take(spool)
    assert numbers(found) == [1, 5]
    assert [one.sequence for one in found] == [1, 2]
    assert found[1].losses == [Loss(EVENT, "spool", 3)]
    spool.close()


@pytest.mark.parametrize("file", ["acked", "state"])
def test_the_state_cannot_be_written(spool: Spool, monkeypatch: pytest.MonkeyPatch, file: str) -> None:
    """Then batches are sent again after a restart, and sequence numbers are not used twice."""
    spool.append(batch([1]))
    take(spool)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", _full)
        if file == "acked":
            patch.setattr(os, "pwrite", _full)
        else:
            spool.lose(EVENT, "ring", 1)
        spool.done()
    assert "No space left" in spool.error
    spool = again(spool)
    assert [one.sequence for one in take(spool)] == [1]
    spool.done()
    spool.append(batch([2]))
    assert [one.sequence for one in take(spool)] == [2]
    spool.close()


def _full(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_what_a_target_has(spool: Spool) -> None:
    """It is known to the next process, also when the segments are gone: numbers are not used twice."""
    state = (spool.directory / "state.json").read_bytes()
    for n in range(3):
        spool.append(batch([n]))
        take(spool)
        spool.done()
    assert (spool.directory / "state.json").read_bytes() == state
    assert (spool.directory / "acked").read_text() == f"{spool.forwarder} {3:020}\n"
    spool = again(spool)
    assert take(spool) == []
    for path in spool.directory.glob("*.segment"):
        path.unlink()
    (spool.directory / "state.json").write_bytes(state)
    spool = again(spool)
    spool.append(batch([3]))
    assert [one.sequence for one in take(spool)] == [4]
    spool.close()


@pytest.mark.parametrize("content", ["", "x", "{other} 9", "{forwarder} x", "{forwarder} 00"])
def test_an_invalid_file_of_what_a_target_has(spool: Spool, content: str) -> None:
    """Batches are sent again."""
    spool.append(batch([1]))
    take(spool)
    spool.done()
    path = spool.directory / "acked"
    path.write_text(content.format(forwarder=spool.forwarder, other="0" * 16))
    spool = again(spool)
    assert [one.sequence for one in take(spool)] == [1]
    spool.close()


def test_an_invalid_state(spool: Spool) -> None:
    spool.append(batch([1]))
    (spool.directory / "state.json").write_bytes(b"{")
    before = spool.forwarder
    spool = again(spool)
    assert spool.forwarder != before
    spool.append(batch([2]))
    first, second = take(spool)
    assert (first.forwarder, first.sequence) == (before, 1)
    assert (second.forwarder, second.sequence) == (spool.forwarder, 2)
    assert second.losses == [Loss(ANY, "spool", None)]
    spool.close()


def test_a_state_of_a_newer_version(spool: Spool) -> None:
    path = spool.directory / "state.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "version": 2}))
    with pytest.raises(OSError, match="is of version 2"):
        again(spool)


@pytest.mark.parametrize("seed", range(20))
def test_the_end_is_torn(spool: Spool, seed: int) -> None:
    """kill -9 within a write: all complete batches are there, the others are counted or known to be lost."""
    for n in range(3):
        spool.append(batch([n]))
    spool.lose(EVENT, "ring", 4)
    spool.append(batch([3, 4], pad=100))
    (path,) = spool.directory.glob("*.segment")
    size = path.stat().st_size
    cut = size - random.Random(seed).choice([*range(1, 90), *range(1, size - 10, 50)])
    os.truncate(path, cut)
    spool = again(spool)
    found = take(spool)
    spool.done()
    spool.append(batch([9]))
    found += take(spool)
    kept = numbers(found)
    assert kept[:-1] == list(range(len(kept) - 1)) and kept[-1] == 9
    assert found[-1].sequence > len(kept) - 1
    lost = {(loss.event, loss.cause): loss.count for loss in found[-1].losses}
    if cut >= size - 80:  # within the body
        assert lost == {(EVENT, "spool"): 2, (EVENT, "ring"): 4}
    else:
        assert lost == {(ANY, "spool"): None}
    spool.close()


def test_a_damaged_batch_is_counted_once(spool: Spool) -> None:
    """In front of other segments, and over several starts."""
    for n in range(12):
        spool.append(batch([n], pad=40_000))
    damaged = sorted(spool.directory.glob("*.segment"))[1]
    os.truncate(damaged, damaged.stat().st_size - 5)
    for n in range(12, 15):
        spool = again(spool)
        spool.append(batch([n]))
    found = take(spool)
    assert numbers(found) == [0, 1, 2, *range(4, 15)]
    assert sum(loss.count or 0 for one in found for loss in one.losses) == 1
    spool.close()


@pytest.mark.parametrize("at", [0, 5, 9, 13, 17, 30, 200])
def test_damage_while_it_runs(spool: Spool, at: int) -> None:
    spool.append(batch([0]))
    (path,) = spool.directory.glob("*.segment")
    start = path.stat().st_size
    spool.append(batch([1]))
    spool.append(batch([2]))
    with path.open("r+b") as file:
        file.seek(start + at)
        byte = file.read(1)
        file.seek(start + at)
        file.write(bytes([byte[0] ^ 1]))
    assert numbers(take(spool)) == [0]
    spool.done()
    assert "is damaged" in spool.error
    spool.append(batch([3]))
    (found,) = take(spool)
    assert numbers([found]) == [3]
    assert found.losses == [Loss(ANY, "spool", None)]


def test_recent_batches_are_in_memory(tmp_path: Path) -> None:
    """As many bytes as the target takes at once, twice; the others are read from the disk."""
    spool = Spool(tmp_path / "spool", 16 * MIN_SIZE)
    assert take(spool, Limits(10**6, 200_000)) == []
    for n in range(20):
        spool.append(batch([n], pad=40_000))
    (path,) = spool.directory.glob("*.segment")
    with path.open("r+b") as file:
        file.write(b"?" * path.stat().st_size)
    found: list[Batch] = []
    while more := take(spool, Limits(10**6, 200_000)):
        found += more
        spool.done()
    assert numbers(found) == list(range(10))
    assert "is damaged" in spool.error and spool._recent_bytes == 0
    spool.append(batch([20]))
    assert [one.losses for one in take(spool)] == [[Loss(ANY, "spool", None)]]
    spool.close()


def test_memory_of_segments_that_are_dropped(spool: Spool) -> None:
    take(spool, Limits(10**6, 10**8))
    for n in range(100):
        spool.append(batch([n], pad=40_000))
    assert spool._recent_bytes == spool.used_bytes <= spool.size
    kept = numbers(take(spool, Limits(10**6, 10**8)))
    assert kept == list(range(kept[0], 100)) and spool._recent_bytes == 0


@settings(deadline=None)
@given(st.data())
def test_all_arrive_or_are_counted(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """The model: sums of records."""
    spool = Spool(tmp_path_factory.mktemp("spool"), MIN_SIZE)
    emitted = 0
    arrived: dict[int, Batch] = {}
    refused: Counter[str] = Counter()
    rnd = data.draw(st.randoms(use_true_random=False))
    for _ in range(data.draw(st.integers(1, 60))):
        step = rnd.choice(["append", "append", "append", "send", "fail", "refuse", "some", "lose", "kill"])
        if step == "append":
            n = rnd.randrange(1, 5)
            emitted += n
            spool.append(batch([1] * n, pad=rnd.choice([1, 100, 60_000, 400_000])))
        elif step == "lose":
            emitted += 7
            spool.lose(EVENT, "ring", 7)
            spool.append(batch([]))
        elif step == "kill":
            spool = again(spool)
        elif found := spool._in_flight or take(spool, Limits(rnd.choice([1, 5, 100]), 10**6)):
            if step == "fail":
                continue
            if step == "refuse":
                spool.done(all_refused=True)
                continue
            arrived.update((one.sequence, one) for one in found)
            some = {EVENT: 1} if step == "some" and found[0].counts else {}
            refused.update(some)
            spool.done(some)
    for _ in range(3):  # the last losses need a batch of their own
        while found := spool._in_flight or take(spool):
            arrived.update((one.sequence, one) for one in found)
            spool.done()
        spool.append(batch([]))
    while found := take(spool):
        arrived.update((one.sequence, one) for one in found)
        spool.done()
    spool.close()
    records = sum(one.nr_records for one in arrived.values()) - refused.total()
    assert records + sum(loss.count or 0 for one in arrived.values() for loss in one.losses) == emitted


def marks_at(total: int) -> Marks:
    missed = StreamMissed(b"daemon", 0, (Missed(EVENT.encode(), total, 0),))
    return Marks.at(missed, Selection(["work"], ["*:*"], is_whole=True))


def test_losses_since_the_marks(spool: Spool) -> None:
    assert not spool.resume(marks_at(100))
    spool.lose(EVENT, "ring", 2)
    spool.append(batch([1, 2, 3]))
    spool.lose(EVENT, "ring", 4)  # in memory alone
    spool = again(spool)
    assert not spool.resume(marks_at(120))
    spool.append(batch([]))
    found = take(spool)
    assert [list(one.losses) for one in found] == [[Loss(EVENT, "ring", 2)], [Loss(EVENT, "away", 15)]]
    spool = again(spool)
    spool.append(batch([]))
    assert spool.resume(None)
    spool.append(batch([]))
    assert spool.resume(marks_at(130))
    spool.append(batch([]))
    assert [list(one.losses) for one in take(spool)][-2:] == [[Loss(ANY, "away", None)]] * 2
    spool.close()


@pytest.mark.parametrize("keeps_first", [False, True])
def test_marks_of_a_batch_that_is_missing(spool: Spool, keeps_first: bool) -> None:
    """Sent, and counted by no mark on the disk: the number is unknown, not too high."""
    spool.resume(marks_at(0))
    for n in range(12):
        spool.append(batch([n], pad=40_000))
    take(spool, Limits(10**6, 10**8))
    os.pwrite(spool._acked_file, b"%s %020d\n" % (spool.forwarder.encode(), 12), 0)
    for path in sorted(spool.directory.glob("*.segment"))[keeps_first:]:
        path.unlink()
    spool = again(spool)
    assert spool.resume(marks_at(12))
    spool.close()


def test_marks_that_cannot_be_written(spool: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches behind them are counted by none, so the next number is unknown."""
    spool.resume(marks_at(100))
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", _full)
        assert not spool.resume(marks_at(110))
        spool.append(batch([1]))
    spool = again(spool)
    assert spool.resume(marks_at(120))
    spool.append(batch([]))
    assert [list(one.losses) for one in take(spool)] == [[Loss(EVENT, "away", 10)], [Loss(ANY, "away", None)]]
    spool.close()


@pytest.mark.parametrize("seed", range(60))
def test_all_arrive_or_are_counted_by_marks(spool: Spool, seed: int) -> None:
    """The model: the daemon's count. Kills, also within a write."""
    total = 100
    spool.resume(marks_at(total))
    arrived: dict[int, Batch] = {}
    refused = 0
    rnd = random.Random(seed)
    steps = ["append"] * 4 + ["send", "send", "refuse", "some", "lose", "missed", "kill", "torn", "restart"]
    for _ in range(rnd.randrange(1, 60)):
        step = rnd.choice(steps)
        if step in ("append", "torn"):
            n = rnd.randrange(1, 5)
            total += n
            is_stored = spool.append(batch([1] * n, pad=rnd.choice([1, 100, 60_000, 400_000])))
            if step == "torn" and is_stored:
                path = spool._path(spool._segments[-1].first)
                *_, last = [size for _, size in _entries(path, 0, Formats())]
                os.truncate(path, path.stat().st_size - rnd.randrange(last + 1))
        elif step == "lose":
            total += 7
            spool.lose(EVENT, "ring", 7)
        elif step == "missed":
            total += rnd.randrange(9)
        elif step in ("send", "some", "refuse") and (
            found := take(spool, Limits(rnd.choice([1, 5, 100]), 10**6))
        ):
            if step == "refuse":
                spool.done(all_refused=True)
                continue
            arrived.update((one.sequence, one) for one in found)
            some = int(step == "some" and bool(found[0].counts))
            refused += some
            spool.done({EVENT: some})
        if step in ("kill", "torn"):
            spool = again(spool)
        if step in ("kill", "torn", "restart"):
            assert not spool.resume(marks_at(total))
    assert not spool.resume(marks_at(total))
    for _ in range(3):
        spool.append(batch([]))
        while found := take(spool):
            arrived.update((one.sequence, one) for one in found)
            spool.done()
    spool.close()
    lost = [loss.count for one in arrived.values() for loss in one.losses]
    assert None not in lost
    records = sum(one.nr_records for one in arrived.values()) - refused
    assert records + sum(count or 0 for count in lost) == total - 100
