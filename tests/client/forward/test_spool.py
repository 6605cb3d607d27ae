"""The spool: order, restarts, damage at any byte, a full spool, a full disk, two users."""

from __future__ import annotations

import contextlib
import errno
import random
import resource
import shutil
import sqlite3
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

from tests.client.forward.kit import EVENT, LIMITS, batch, marks_at
from utracefs.forward.batch import Batch
from utracefs.forward.losses import ANY, Loss
from utracefs.forward.spool import MIN_SIZE, SEGMENTS, Spool, Sync
from utracefs.forward.target import Limits
from utracefs.recordings.origin import ClockPair


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    with contextlib.closing(Spool(tmp_path / "spool", MIN_SIZE)) as spool:
        yield spool


def again(spool: Spool) -> Spool:
    """As the next process sees it after a kill -9 of this one: its files, before `close`."""
    copy = spool.directory.with_name(f"{spool.directory.name}+")
    shutil.copytree(spool.directory, copy)
    spool.close()
    return Spool(copy, spool.size)


@contextlib.contextmanager
def failing_disk() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


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


@pytest.mark.parametrize("sync", list(Sync))
def test_a_failing_disk(tmp_path: Path, sync: Sync) -> None:
    spool = Spool(tmp_path / "spool", MIN_SIZE, sync)
    assert spool.append(batch([1]))
    take(spool)
    with failing_disk():
        spool.done({EVENT: 1})
        assert not spool.append(batch([2]))
        assert not spool.append(batch([3, 4]))
        spool.sync()
        assert "disk I/O error" in spool.error
    assert spool.append(batch([5]))
    assert not spool.error
    spool.sync()
    spool = again(spool)
    (found,) = take(spool)
    assert (numbers([found]), found.sequence) == ([5], 2)
    assert set(found.losses) == {Loss(EVENT, "spool", 3), Loss(EVENT, "refused", 1)}
    spool.close()


def test_another_boot(spool: Spool) -> None:
    """The system crashed: the disk may have lost batches that a target has, so their numbers come again, with
    another id. A target gets batches of one id at a time."""
    spool.append(batch([1]))
    before = spool.forwarder
    spool = again(spool)
    assert spool.forwarder == before
    with contextlib.closing(sqlite3.connect(spool.directory / "spool.sqlite")) as db:
        spool.close()
        ((state,),) = db.execute("select value from state")
        db.execute("update state set value = ?", [state.replace('"boot": ""', '"boot": "another"')])
        db.commit()
    spool = Spool(spool.directory, MIN_SIZE)
    spool.append(batch([2]))
    (old,), (new,) = take(spool), take(spool)
    assert (numbers([old, new]), old.forwarder) == ([1, 2], before)
    assert before != new.forwarder == spool.forwarder
    spool.close()


def test_the_space_of_a_full_spool_is_given_back(spool: Spool) -> None:
    while spool.used_bytes < MIN_SIZE // 2:
        spool.append(batch([1], pad=20_000))
    take(spool, Limits(1000, MIN_SIZE))
    spool.done()
    for _ in range(3):
        spool.sync()
    assert (spool.directory / "spool.sqlite").stat().st_size < MIN_SIZE // SEGMENTS + 4096 * 8
    spool.append(batch([2]))
    assert numbers(take(spool)) == [2]


def test_others_cannot_read_it(spool: Spool) -> None:
    spool.append(batch([1]))
    assert stat.S_IMODE(spool.directory.stat().st_mode) == 0o700
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in spool.directory.iterdir()}
    assert modes == dict.fromkeys(("lock", "spool.sqlite", "spool.sqlite-wal", "spool.sqlite-shm"), 0o600)


def test_other_versions(tmp_path: Path) -> None:
    Spool(tmp_path / "new", MIN_SIZE).close()
    with contextlib.closing(sqlite3.connect(tmp_path / "new/spool.sqlite")) as db:
        db.execute("pragma user_version = 9")
    with pytest.raises(OSError, match="is of version 9"):
        Spool(tmp_path / "new", MIN_SIZE)
    (tmp_path / "old").mkdir()
    (tmp_path / "old/state.json").write_bytes(b"{}")
    with pytest.raises(OSError, match=r"let that version send its records, then remove"):
        Spool(tmp_path / "old", MIN_SIZE)
    assert [path.name for path in (tmp_path / "old").iterdir()] == ["state.json"]


def flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 4]))


def test_a_damaged_batch(spool: Spool) -> None:
    """It is lost, and the others go out."""
    for n, pad in enumerate(("a", "b", "c")):
        spool.append(attrs.evolve(batch([n]), comms={7: 100 * pad}))
    spool.close()
    path = spool.directory / "spool.sqlite"
    flip(path, path.read_bytes().index(b"b" * 100))
    spool = Spool(spool.directory, MIN_SIZE)
    assert numbers(take(spool)) == [0, 2]
    assert "batch 2 is damaged" in spool.error
    spool.done()
    assert spool.used_bytes == 0
    spool.append(batch([3]))
    (found,) = take(spool)
    assert found.losses == [Loss(ANY, "spool", None)]
    spool.close()


@pytest.mark.parametrize("content", [b"", b"{" * 50_000, b"SQLite format 3\0" + b"{" * 50_000])
def test_a_damaged_database(spool: Spool, content: bytes) -> None:
    """It is set aside, and the next spool has another id."""
    spool.append(batch([1]))
    before = spool.forwarder
    spool.close()
    (spool.directory / "spool.sqlite").write_bytes(content)
    spool = Spool(spool.directory, MIN_SIZE)
    assert spool.forwarder != before
    assert spool.resume(marks_at(3))
    if content:
        assert "was damaged" in spool.error
        assert (spool.directory / "spool.sqlite.damaged").read_bytes()[:16] == content[:16]
    spool.append(batch([2]))
    (found,) = take(spool)
    assert found.sequence == 1 and Loss(ANY, "away", None) in found.losses
    spool.close()


@pytest.mark.parametrize("seed", range(30))
def test_a_flipped_bit(spool: Spool, seed: int) -> None:
    """Anywhere in the database: each batch arrives unchanged, or a loss is reported."""
    rnd = random.Random(seed)
    made = [batch(range(1000 * n, 1000 * n + rnd.choice([1, 900]))) for n in range(12)]
    for one in made:
        spool.append(one)
    take(spool, Limits(1000, MIN_SIZE))
    spool.done()
    expected = set(numbers(spool.take(Limits(10**6, MIN_SIZE), 0)))
    spool.close()
    path = spool.directory / "spool.sqlite"
    flip(path, rnd.randrange(path.stat().st_size))
    try:
        spool = Spool(spool.directory, MIN_SIZE)
    except OSError as error:
        assert "is of version" in str(error)
        return
    found = take(spool, Limits(10**6, MIN_SIZE))
    spool.done()
    assert set(numbers(found)) <= set(numbers(made))
    assert spool.append(batch([100_000]))
    found += take(spool)
    assert expected <= set(numbers(found)) or Loss(ANY, "spool", None) in found[-1].losses
    spool.close()


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


@pytest.mark.parametrize("seed", range(40))
def test_all_arrive_or_are_counted(spool: Spool, seed: int) -> None:
    """The model: the daemon's count. Kills, full spools, a disk that fails meanwhile."""
    total = 100
    spool.resume(marks_at(total))
    arrived: dict[int, Batch] = {}
    held: list[Batch] = []
    refused: dict[int, int] = {}
    rnd = random.Random(seed)
    steps = ["append"] * 4 + ["take", "send", "send", "refuse", "some", "lose", "missed", "kill", "restart"]
    for _ in range(rnd.randrange(1, 60)):
        step = rnd.choice(steps)
        with failing_disk() if rnd.random() < 0.2 else contextlib.nullcontext():
            if step == "append":
                n = rnd.randrange(1, 5)
                total += n
                spool.append(batch([1] * n, pad=rnd.choice([1, 100, 60_000, 400_000])))
            elif step == "lose":
                total += 7
                spool.lose(EVENT, "ring", 7)
            elif step == "missed":
                total += rnd.randrange(9)
            elif step in ("take", "send", "some", "refuse"):
                held = held or take(spool, Limits(rnd.choice([1, 5, 100]), 10**6))
                if step == "take" or not held:
                    continue
                if step == "refuse" and not any(one.sequence in arrived for one in held):
                    spool.done(all_refused=True)
                else:
                    arrived.update((one.sequence, one) for one in held)
                    some = int(step == "some" and bool(held[0].counts))
                    refused[held[0].sequence] = some
                    spool.done({EVENT: some})
                held = []
        if step == "kill":
            spool.sync()
            spool, held = again(spool), []
        if step in ("kill", "restart"):
            assert not spool.resume(marks_at(total))
    assert not spool.resume(marks_at(total))
    for _ in range(4):
        spool.append(batch([]))
        while found := held or take(spool):
            arrived.update((one.sequence, one) for one in found)
            refused.update((one.sequence, 0) for one in found)
            spool.done()
            held = []
    spool.close()
    lost = [loss.count for one in arrived.values() for loss in one.losses]
    assert None not in lost
    records = sum(one.nr_records for one in arrived.values()) - sum(refused.values())
    assert records + sum(count or 0 for count in lost) == total - 100
