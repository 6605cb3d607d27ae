"""A tool counts each emitted record, or reports it as lost."""

import re
import time

import pytest

from tests.integration.bpf.workload import REQUEST, plain, started
from tests.integration.conftest import DaemonProcess
from tests.integration.mount.mounting import wait_for
from tests.judges import judge

judge("bpftrace")
COUNT = f"{REQUEST} {{ @ = count(); }}"
DECLARATION = "bt_request u16 status; u32 usec; __rel_loc char[] path"


def counted_and_lost(answer: tuple[int, str, str]) -> tuple[int, int]:
    status, out, error = answer
    assert status == 0 and "utracefs:" not in error, error
    count = re.fullmatch(r"@: (\d+)", plain(out))
    return int(count[1]) if count else 0, sum(map(int, re.findall(r"Lost (\d+) events", error)))


@pytest.mark.parametrize("kill", [False, True])
def test_a_restart_under_a_running_tool(daemon: DaemonProcess, kill: bool) -> None:
    """A killed daemon may have passed on its last record and not noted that: then that one is both."""
    with started(daemon, COUNT) as (session, tool):
        tool.attached()
        request = session.event(DECLARATION)
        with daemon.tree() as tree:  # else the event is off while the tool is away
            tree.write_file("events/user_events/bt_request/enable", b"1\n")
        for n in range(3000):
            request.emit(200, n, "/")
            if n in (1000, 2000):
                daemon.stop(kill=kill)
                daemon.start()
                assert session.flush(60)
                wait_for(lambda: request.enabled, "the program has the next daemon")
                if kill:  # one that is killed before the tool reached it tells nobody what it took in
                    wait_for(tool.is_attached, "the tool has the next daemon")
                    time.sleep(2)
        assert session.flush(60)
        wait_for(tool.is_attached, "the tool has the next daemon")
        request.emit(200, 0, "/")
        assert session.flush(60)
        counted, lost = counted_and_lost(tool.end())
    assert 3001 <= counted + lost <= 3001 + 2 * kill and counted >= 1000


def test_two_tools_and_a_flood(daemon: DaemonProcess) -> None:
    with started(daemon, COUNT) as (session, one), started(daemon, COUNT) as (_, other):
        one.attached()
        other.attached()
        request = session.event(DECLARATION)
        for n in range(500_000):
            request.emit(200, n, "/a/path/of/some/length")
        time.sleep(0.1)
        for tool in (one, other):
            counted, lost = counted_and_lost(tool.end())
            assert 500_000 <= counted + lost < 500_000 + one.nr_done + other.nr_done


def test_ctrl_c_does_not_wait_for_a_slow_program(daemon: DaemonProcess) -> None:
    slow = f"{REQUEST} {{ @ = count(); $i = 0; while ($i < 1000000000) {{ @i = $i; $i++; }} }}"
    with started(daemon, slow) as (session, tool):
        tool.attached()
        request = session.event(DECLARATION)
        for n in range(20_000):
            request.emit(200, n, "/")
        _, out, error = tool.interrupt()
    counted = int(re.search(r"^@: (\d+)", out, re.MULTILINE)[1])  # type: ignore[index]
    assert "it ran too long" in error
    assert counted + sum(map(int, re.findall(r"Lost (\d+) events", error))) == 20_000 > counted
