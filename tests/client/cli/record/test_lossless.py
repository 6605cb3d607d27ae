"""`record --lossless`: programs wait for room, but never for ever."""

import re
import signal
import subprocess
import sys
import time

import pytest

from tests.client.c.building import SOURCE, build
from tests.client.cli.kit import Cli, Eventually, interrupt
from tests.forked import Popen

FULL_SPEED = """
#include <utracefs.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
UTRACEFS_EVENT(quick, (u64, i));
static volatile unsigned long handled;
static void handler(int n) { (void)n; UTRACEFS_EMIT(quick, handled); handled++; }
static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}
int main(int argc, char **argv)
{
	struct itimerval often = {{0, 200}, {0, 200}}, never = {{0, 0}, {0, 0}};
	unsigned long n = strtoul(argv[1], NULL, 10);
	double longest = 0;
	while (!utracefs_enabled(&quick) || utracefs_event_error(&quick, NULL, 0));
	if (argc > 2) { signal(SIGALRM, handler); setitimer(ITIMER_REAL, &often, NULL); }
	for (unsigned long i = 0; i < n; i++) {
		double begin = i % 64 ? 0 : now();
		UTRACEFS_EMIT(quick, i);
		if (begin && now() - begin > longest) longest = now() - begin;
	}
	setitimer(ITIMER_REAL, &never, NULL);
	printf("%lu %.3f\\n", n + handled, longest);
	return 0;
}
"""
IN_PYTHON = """
import threading, utracefs
event = utracefs.event("quick u64 i")
while not (event.registered and event):
    pass
def run():
    for i in range(150_000):
        event.emit(i)
threads = [threading.Thread(target=run) for _ in range(2)]
for one in threads:
    one.start()
for one in threads:
    one.join()
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("quick")
    (folder / "quick.c").write_text(FULL_SPEED)
    library = build()
    made = str(folder / "quick")
    command = ["gcc", "-O2", f"-I{SOURCE / 'include'}", str(folder / "quick.c"), "-o", made]
    subprocess.run([*command, str(library / "libutracefs.a"), "-pthread"], check=True)
    return made


def summary(error: bytes) -> tuple[int, int]:
    last = error.decode().splitlines()[-1]
    lost = re.search(r", (\d+) lost", last)
    found = re.search(r": (\d+) records", last)
    assert found, error
    return int(found[1]), int(lost[1]) if lost else 0


def test_nothing_is_lost(traced: Cli, program: str) -> None:
    """By a program in C and by threads in Python, with small rings."""
    traced.env["UTRACEFS_RING_KB"] = "64"
    done = traced.run("record", "-o", "c.dat", "--lossless", "--", program, "2000000")
    assert summary(done.stderr) == (2_000_000, 0)
    done = traced.run("record", "-o", "p.dat", "--lossless-ms", "500", "--", sys.executable, "-c", IN_PYTHON)
    assert summary(done.stderr) == (300_000, 0)


def test_a_signal_handler_in_an_emit_does_not_wait_for_itself(traced: Cli, program: str) -> None:
    traced.env["UTRACEFS_RING_KB"] = "64"
    done = traced.run("record", "-o", "c.dat", "--lossless-ms", "5000", "--", program, "1000000", "handler")
    emitted, longest = done.stdout.split()
    assert sum(summary(done.stderr)) == int(emitted) > 1_000_000 and float(longest) < 4


@pytest.mark.parametrize(
    ("who", "how"), [("recorder", signal.SIGSTOP), ("daemon", signal.SIGSTOP), ("daemon", signal.SIGKILL)]
)
def test_nobody_waits_for_what_does_not_run(
    traced: Cli,
    daemon: "subprocess.Popen[bytes]",
    eventually: Eventually,
    program: str,
    who: str,
    how: signal.Signals,
) -> None:
    recorder = traced.start("record", "-o", "s.dat", "--lossless-ms", "300")
    eventually(traced.standing, "it records")
    running = Popen([program, "10000000"], env=traced.env, stdout=subprocess.PIPE)
    time.sleep(0.3)
    (recorder if who == "recorder" else daemon).send_signal(how)
    begin = time.monotonic()
    emitted, longest = running.communicate()[0].split()
    assert float(longest) < 3 and time.monotonic() - begin < 40
    for one in (recorder, daemon):
        one.send_signal(signal.SIGCONT)
    if how != signal.SIGKILL:
        _, error = interrupt(recorder, signal.SIGTERM)
        assert sum(summary(error)) == int(emitted)
