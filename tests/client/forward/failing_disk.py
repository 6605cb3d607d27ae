"""The spool on a disk that fails, and on machines that crash, at each call that changes a file.

    failing_disk.c, preloaded ──▶ this ── fork ──▶ `work`: says each promise that the spool has made
                                   │                  ✂ the n-th call
                                   └──▶ `judge`: opens the spool that is left, sends the rest, compares

python -m tests.client.forward.failing_disk FOLDER SYNC [EVERY]      `test_spool_calls.py` preloads
"""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import shutil
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs

from tests.client.forward.kit import EVENT, batch, marks_at
from utracefs.forward import spool as module
from utracefs.forward.batch import Batch
from utracefs.forward.losses import SPOOL
from utracefs.forward.spool import Spool, Sync, boot_id
from utracefs.forward.target import Limits

SIZE = 1 << 17
"""A spool so small that a few batches fill it, with a log that is as small."""

FIRST = 100
"""Records that the daemon had counted when the forwarder came."""

PATIENCE = 40
"""More calls of the spool than a disk fails in succession."""

Say = Callable[..., None]
Line = list[Any]


@attrs.frozen
class Plan:
    """The faults of the disk (failing_disk.c)."""

    fault: str
    loses: str = ""
    times: int = 1

    @property
    def is_kill(self) -> bool:
        return self.fault not in ("EIO", "ENOSPC")


PLANS = [
    Plan("kill"),
    Plan("torn"),
    *(Plan("kill", loses) for loses in ("all", "contents", "odd", "even", "halves")),
    Plan("EIO"),
    Plan("EIO", "all"),
    Plan("ENOSPC"),
    Plan("ENOSPC", times=30),
]


def sent(one: Batch) -> Line:
    """All that the target has of it."""
    numbers = [record.fields["a"] for record in one]
    return [one.forwarder, one.sequence, [list(attrs.astuple(loss)) for loss in one.losses], numbers]


def work(folder: Path, sync: Sync, say: Say) -> None:
    """All kinds of transactions, twice; at the end the process is killed."""
    number = FIRST

    def append(*pads: int) -> bool:
        nonlocal number
        is_stored = False
        for pad in pads:
            number += 1
            say("emitted", number)
            is_stored = spool.append(batch([number], pad=pad))
            say("stored" if is_stored else "refused", number, spool.error)
        return is_stored

    def send(most: int, refused: int = 0) -> None:
        found = spool.take(Limits(most, SIZE), 0)
        for one in found:
            say("sent", *sent(one), refused if one is found[0] else 0)
        spool.done({EVENT: refused} if found else {})
        say("done", [sent(one)[:2] for one in found], spool.error)

    def fsync() -> None:
        spool.sync()
        if not spool.error:
            say("synced")

    for _ in range(2):
        for _ in range(PATIENCE):
            try:
                spool = Spool(folder, SIZE, sync)
            except OSError as error:
                say("error", str(error))
            else:
                break
        spool.resume(marks_at(number))
        say("attached")
        append(1, 1)
        send(100)
        append(3000)
        fsync()
        send(1)
        append(20)
        send(100, refused=1)
        append(*[30_000] * 5)
        number += 3
        say("emitted", number)
        spool.lose(EVENT, "ring", 3)
        append(1)
        fsync()
        send(100)
        fsync()
        assert any(append(1) for _ in range(PATIENCE)), "the disk works again, and the spool does not"
        append(1)
        send(1)
        spool.close()
        say("closed", spool.error)


def run(folder: Path, sync: Sync, plan: Plan, at: int) -> list[Line]:
    """The lines of the fork."""
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        os.environ.update(
            DISK_AT=str(at), DISK_FAULT=plan.fault, DISK_LOSES=plan.loses, DISK_TIMES=str(plan.times)
        )

        def say(*line: Any) -> None:
            os.write(writer, json.dumps(line).encode() + b"\n")

        try:
            work(folder, sync, say)
            say("end", ctypes.c_ulong.in_dll(ctypes.CDLL(None), "disk_calls").value)
        except BaseException:  # noqa: BLE001 (for the judge)
            say("raised", traceback.format_exc())
        os.kill(os.getpid(), signal.SIGKILL)
    os.close(writer)
    with os.fdopen(reader) as lines:
        said = [json.loads(line) for line in lines]
    os.waitpid(pid, 0)
    return said


class Far:
    """The targets: each batch by its number, and how many of its records were refused."""

    def __init__(self) -> None:
        self.batches: dict[tuple[str, int], tuple[list[Line], list[int], int]] = {}

    def take(
        self, forwarder: str, sequence: int, losses: list[Line], numbers: list[int], refused: int
    ) -> None:
        before = self.batches.setdefault((forwarder, sequence), (losses, numbers, refused))
        assert before[:2] == (losses, numbers), f"two batches have the number {sequence}"
        self.batches[forwarder, sequence] = losses, numbers, refused

    @property
    def numbers(self) -> list[int]:
        return [number for _, numbers, _ in self.batches.values() for number in numbers]

    @property
    def lost(self) -> list[Line]:
        return [loss for losses, _, _ in self.batches.values() for loss in losses]


def judge(folder: Path, sync: Sync, plan: Plan, said: list[Line]) -> None:
    """AssertionError: the spool has broken a promise of docs/forward.md."""
    for what, *values in said:
        assert what != "raised", values[0]
        assert what != "error" or str(folder) in values[0], values[0]
        if what in ("refused", "stored"):
            assert bool(values[1]) == (what == "refused"), "an error is shown while there is one"
            assert "damaged" not in values[1]
    # These promises must be kept: all of them, or those before the last fsync(2).
    is_exact = not plan.loses or sync is Sync.ALWAYS
    may_be_damaged = bool(plan.loses) and sync is Sync.NEVER
    words = [line[0] for line in said]
    end = len(said) if is_exact else len(words) - words[::-1].index("synced") if "synced" in words else 0
    safe = [] if may_be_damaged else said[:end]
    total = max([line[1] for line in said if line[0] == "emitted"], default=FIRST)
    far = Far()
    for line in said:
        if line[0] == "sent":
            far.take(*line[1:])
    done = set()
    for at, (what, *values) in enumerate(safe):
        # If the disk fails, the next transaction has what `done` could not write.
        if what == "done" and (plan.is_kill or any(one[0] == "stored" for one in safe[at:])):
            done |= {tuple(each) for each in values[0]}

    if plan.loses:
        module.boot_id = lambda: "another"
    spool = Spool(folder, SIZE, sync)
    assert may_be_damaged or not (spool.error or list(folder.glob("*.damaged"))), spool.error
    spool.resume(marks_at(total) if not may_be_damaged else attrs.evolve(marks_at(total), origin="another"))
    again = []
    for _ in range(2):
        spool.append(batch([]))
        while found := spool.take(Limits(1000, SIZE), 0):
            again += [sent(one) for one in found]
            spool.done()
    spool.close()
    for forwarder, sequence, losses, numbers in again:
        assert (forwarder, sequence) not in done, f"{sequence} was sent, and is sent again"
        assert all(FIRST < number <= total for number in numbers)
        if not may_be_damaged or (forwarder, sequence) not in far.batches:
            far.take(forwarder, sequence, losses, numbers, 0)
    module.boot_id = boot_id
    spool = Spool(folder, SIZE, sync)
    assert may_be_damaged or (spool.is_empty and not spool.error), spool.error
    spool.close()

    assert may_be_damaged or len(far.numbers) == len({*far.numbers}), "a record arrives in two batches"
    dropped = sum(count or 0 for _, cause, count in far.lost if cause == SPOOL)
    missing = {values[0] for what, *values in safe if what == "stored"} - {*far.numbers}
    known = [count for _, _, count in far.lost if count is not None]
    # A full disk: an empty spool was removed, and the new one could not be made before the process ended.
    is_new = plan.fault == "ENOSPC" and any(line[-1] for line in said if line[0] in ("done", "closed"))
    assert len(missing) <= dropped or (is_new and len(known) < len(far.lost)), (
        f"{missing} were stored, and are gone"
    )
    is_known = "attached" in [line[0] for line in safe] and "error" not in words and not is_new
    assert not is_known or not is_exact or len(known) == len(far.lost), "a number is unknown"
    if len(known) == len(far.lost):
        accounted = len(far.numbers) - sum(refused for _, _, refused in far.batches.values()) + sum(known)
        # Those of which `done` could not be stored may be dropped by a full spool, and so be counted, too.
        more = sum(len(line[1]) for line in said if line[0] == "done" and line[2])
        assert total - FIRST <= accounted <= total - FIRST + more or (
            not is_exact and accounted > total - FIRST
        ), f"{accounted} of {total - FIRST} records are accounted for"


def main() -> None:
    folder, sync = Path(sys.argv[1]), Sync(sys.argv[2])
    every = int(sys.argv[3]) if len(sys.argv) > 3 else 1
    os.environ["DISK_FOLDER"] = str(folder)
    module.MIN_SIZE = SIZE  # type: ignore[misc]
    module._LEAST_LOG = 3 * SIZE  # type: ignore[misc]
    for plan in PLANS:
        said: list[Line] = []
        for at in itertools.count(1, every):
            said = run(folder, sync, plan, at)
            try:
                judge(folder, sync, plan, said)
            except Exception:  # noqa: BLE001 (the others, too)
                print(f"{sync} {plan} at call {at}: {traceback.format_exc(limit=-3)}", flush=True)
                print(*(json.dumps(line)[:300] for line in said[-8:]), sep="\n", flush=True)
            shutil.rmtree(folder)
            for path in folder.parent.glob(f"{folder.name}-removed-*"):
                path.unlink()
            if said and said[-1][0] == "end" and said[-1][1] < at:
                break
        print(f"{sync} {plan}: {at} calls", file=sys.stderr)


if __name__ == "__main__":
    main()
