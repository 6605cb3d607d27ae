"""emitted = recorded + filtered + lost, for every event and every consumer, whatever happens."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable

from tests.integration.conftest import DaemonProcess
from utracefs.tree.tracefs import PerfAttr

PRODUCER = """
import signal, sys, utracefs
event = utracefs.event("cons u64 n; __rel_loc char[] s")
n = 0
deadline = int(sys.argv[1])
while n < deadline or deadline < 0:
    if event:
        event.emit(n, "x" * (n % 50))
        n += 1
        if n == 5000:
            print("going", flush=True)
        if n == 15000 and deadline < 0:
            signal.pause()
utracefs.flush(60)
print(utracefs.stats().lost, flush=True)
"""


def stats(text: bytes) -> tuple[int, dict[str, dict[str, int]]]:
    emitted = re.match(rb"emitted: (\d+)\n", text)
    assert emitted, text
    rows = re.findall(rb"^(\S+): recorded (\d+) filtered (\d+) lost (\d+)$", text, re.MULTILINE)
    return int(emitted[1]), {
        r[0].decode(): {"recorded": int(r[1]), "filtered": int(r[2]), "lost": int(r[3])} for r in rows
    }


def test_several_producers_a_small_buffer_and_a_killed_one(
    daemon: DaemonProcess, environment: dict[str, str], eventually: Callable[..., None]
) -> None:
    with daemon.tree() as tree:
        tree.write_file("buffer_size_kb", b"16\n")
        tree.write_file("options/overwrite", b"0\n")
        tree.write_file("standing_events", b"user_events:*\n")
        producers = [
            subprocess.Popen(
                [sys.executable, "-c", PRODUCER, str(count)],
                env=environment,
                stdout=subprocess.PIPE,
                text=True,
            )
            # a data ring holds 18,072: none is lost there, however late the daemon comes
            for count in (15_000, 15_000, -1)
        ]
        try:
            killed = producers[2]
            assert killed.stdout is not None
            assert killed.stdout.readline() == "going\n"
            killed.send_signal(signal.SIGKILL)
            killed.wait(60)
            lost_in_clients = 0
            for producer in producers[:2]:
                out, _ = producer.communicate(timeout=60)
                lost_in_clients += int(out.split()[-1])
        finally:
            for producer in producers:
                producer.kill()
                producer.wait()
                assert producer.stdout is not None
                producer.stdout.close()
        emitted, consumers = stats(tree.read_file("events/user_events/cons/stats"))
        ftrace = consumers["ftrace"]
        assert emitted == sum(ftrace.values())
        assert emitted >= 30_000 - lost_in_clients
        assert ftrace["lost"] > 0, "the buffer was small on purpose"
        kept = dropped = 0
        for cpu in range(len([n for n, _ in tree.list_dir("per_cpu")])):
            text = tree.read_file(f"per_cpu/cpu{cpu}/stats")
            numbers = {k: int(v) for k, v in re.findall(rb"^([a-z ]+): (\d+)$", text, re.MULTILINE)}
            kept += numbers[b"entries"] + numbers[b"overrun"] + numbers[b"read events"]
            dropped += numbers[b"dropped events"]
        assert kept == ftrace["recorded"]
        assert dropped == ftrace["lost"]


def test_two_consumers_one_of_them_off(daemon: DaemonProcess, environment: dict[str, str]) -> None:
    with daemon.tree() as tree:
        tree.write_file("standing_events", b"cons\n")
        tree.write_file("dynamic_events", b"u:cons u64 n; __rel_loc char[] s\n", truncate=False)
        perf, fd = tree.perf_event_open(PerfAttr(name=b"user_events:cons", sample_period=1, data_pages=1))
        tree.write_file("tracing_on", b"0\n")
        done = subprocess.run(
            [sys.executable, "-c", PRODUCER, "10000"],
            env=environment,
            capture_output=True,
            check=True,
            timeout=60,
        )
        lost = int(done.stdout.split()[-1])
        emitted, consumers = stats(tree.read_file("events/user_events/cons/stats"))
        assert emitted == 10_000 - lost
        assert consumers["ftrace"] == {"recorded": 0, "filtered": emitted, "lost": 0}
        sampler = next(v for k, v in consumers.items() if k.startswith("perf:"))
        assert sum(sampler.values()) == emitted
        assert sampler["lost"] > 0, "one page cannot hold them"
        assert int.from_bytes(tree.read(perf, 8), "little") == emitted
        if fd is not None:
            os.close(fd)
