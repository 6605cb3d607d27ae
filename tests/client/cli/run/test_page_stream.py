"""Pages of a real daemon, read from the ring."""

import contextlib
import errno
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest

from tests.client.cli.kit import Cli
from tests.integration.conftest import running
from tests.protocol.pages.page_writer import decode_page
from utracefs.cli.instance_option import TOP
from utracefs.cli.run import page_stream
from utracefs.cli.run.page_stream import PageStream, WayToDisk
from utracefs.tree.tracefs import Tracefs
from utracefs_protocol.pages._stream_ring import StreamRing

EMIT = """
import utracefs
event = utracefs.event("ev u32 a")
while not (event.registered and event):
    pass
for a in range(100_000):
    event.emit(a)
utracefs.flush(60)
"""


def emit(cli: Cli) -> None:
    env = {**cli.env, "UTRACEFS_RING_KB": "65536"}
    subprocess.run([sys.executable, "-c", EMIT], env=env, check=True)


class Taken:
    def __init__(self) -> None:
        self.pages: list[bytes] = []
        self.counted = 0
        self.threads: set[str] = set()

    def __call__(self, cpu: int, pages: memoryview, records: int, _direct: bool) -> None:
        self.threads.add(threading.current_thread().name)
        self.pages += [bytes(pages[at : at + 4096]) for at in range(0, len(pages), 4096)]
        self.counted += records

    def values(self) -> list[int]:
        records = [one for page in self.pages for one in decode_page(page).records]
        return sorted(int.from_bytes(one.data[8:12], "little") for one in records)


@pytest.fixture
def tree(traced: Cli) -> Tracefs:
    traced.run("reg", "ev u32 a")
    traced.run("enable", "ev")
    return Tracefs(traced.env["UTRACEFS_DIR"], timeout_s=30)


def test_all_records_in_the_thread_and_in_calls(traced: Cli, tree: Tracefs) -> None:
    taken = Taken()
    stream = PageStream(tree, TOP, 4096, 512, taken)
    stream.start()
    emit(traced)
    while stream.take_ready():
        pass
    stream.close()
    stream.close()
    assert taken.values() == list(range(100_000)) and taken.counted == 100_000
    assert taken.threads == {"pages", "MainThread"}
    tree.close()


def test_a_ring_without_address_space(tree: Tracefs, monkeypatch: pytest.MonkeyPatch) -> None:
    """A smaller one, or none: then another reader may have the pages."""
    for most in (0, 1 << 21):

        def mapped(fd: int, most: int = most) -> StreamRing:
            if os.fstat(fd).st_size > most:
                raise OSError(errno.ENOMEM, "Cannot allocate memory")
            return StreamRing(fd)

        monkeypatch.setattr(page_stream, "StreamRing", mapped)
        with contextlib.nullcontext() if most else pytest.raises(OSError, match="allocate"):
            PageStream(tree, TOP, 4096, 512, Taken()).close()
    tree.close()


def test_a_reader_at_a_time(tree: Tracefs) -> None:
    first = PageStream(tree, TOP, 4096, 512, Taken())
    with pytest.raises(OSError, match="another stream has the pages"):
        PageStream(tree, TOP, 4096, 512, Taken())
    first.close()
    PageStream(tree, TOP, 4096, 512, Taken()).close()
    tree.close()


def test_an_error_in_the_thread_is_raised_in_the_caller(traced: Cli, tree: Tracefs) -> None:
    def fail(*_: object) -> None:
        raise OSError(5, "a broken disk")

    stream = PageStream(tree, TOP, 4096, 512, fail)
    stream.start()
    emit(traced)
    for ask in (stream.take_ready, stream.close):
        with pytest.raises(OSError, match="a broken disk"):
            ask()
    tree.close()


def test_another_page_size(traced: Cli, tree: Tracefs) -> None:
    stream = PageStream(tree, TOP, 4096, 512, Taken())
    traced.run("write", "buffer_subbuf_size_kb", data=b"16\n")
    traced.run("emit", "ev", "1")
    with pytest.raises(OSError, match=r"a page of 16384 bytes of cpu .*: was it changed"):
        stream.take_ready()
    stream.close()
    tree.close()


def test_the_daemon_ends(
    traced: Cli, daemon: "subprocess.Popen[bytes]", tree: Tracefs, eventually: Callable[..., None]
) -> None:
    """The pages that are in the ring are passed on."""
    taken = Taken()
    stream = PageStream(tree, TOP, 4096, 512, taken)
    emit(traced)
    daemon.kill()
    daemon.wait()
    stream.start()
    with pytest.raises(ConnectionError):
        stream.take_ready()
    stream.close()
    assert 98_000 < taken.counted <= 100_000
    tree.close()


def test_the_next_daemon_s_handles_stay_open(
    traced: Cli, daemon: "subprocess.Popen[bytes]", tree: Tracefs
) -> None:
    """They may have the numbers of those of the one before."""
    stream = PageStream(tree, TOP, 4096, 512, Taken())
    daemon.kill()
    daemon.wait()
    with running(traced.home / "d"):
        tree.connect_again()
        handles = [tree.open("trace_marker", os.O_WRONLY) for _ in range(3)]
        stream.close()
        for handle in handles:
            tree.close_handle(handle)
    tree.close()


def test_the_caller_is_not_kept_out(traced: Cli, tree: Tracefs) -> None:
    stream: PageStream
    inside = threading.Event()

    def slowly(*_: object) -> None:
        inside.set()
        time.sleep(0.01)

    stream = PageStream(tree, TOP, 4096, 512, slowly)
    emit(traced)
    stream.start()
    assert inside.wait(60)
    with stream.exclusive():
        inside.clear()
        assert not inside.wait(0.05)
    stream.close()
    tree.close()


def test_a_nested_block_while_the_other_thread_waits(tree: Tracefs) -> None:
    stream = PageStream(tree, TOP, 4096, 512, Taken())
    entered = threading.Event()

    def enter() -> None:
        with stream.exclusive():
            entered.set()

    other = threading.Thread(target=enter, daemon=True)
    with stream.exclusive():
        other.start()
        while not stream.turn.locked():  # the other one has the turn, and waits for this block
            time.sleep(0.001)
        with stream.exclusive():
            assert not entered.is_set()
    assert entered.wait(60)
    other.join()
    stream.close()
    tree.close()


MILLION = 1_000_000


def ways(records: float, cache: float, disk: float, ring: int = 128 * MILLION) -> list[bool]:
    """The way of each of 200 windows, by what comes, and what each way takes, in MB a second."""
    way, head, position, found = WayToDisk(ring), 0.0, 0.0, []
    for n in range(200):
        head += records / 10 * MILLION
        position = min(head, position + (disk if way.is_direct else cache) / 10 * MILLION)
        assert head - position < ring or records > max(cache, disk), n
        way.look(n / 10, int(position), int(head - position))
        found.append(way.is_direct)
    return found


def test_many_records_go_to_the_disk_directly() -> None:
    """As long as the disk takes them in time. None is lost where one of the ways is fast enough."""
    assert not any(ways(20, 400, 1500))
    assert all(ways(336, 400, 1500)[1:])
    assert all(ways(336, 300, 340)[1:])
    assert 0 < sum(ways(100, 400, 25)) < 120
    assert sum(ways(336, 1500, 200)) < 100
    assert sum(ways(2000, 400, 200)) < 40
    assert sum(ways(2000, 200, 400)) > 160


def test_a_stall_of_the_disk_changes_nothing() -> None:
    way = WayToDisk(128 * MILLION)
    for now_s, position, waiting in [(0, 0, 0), (0.1, 33, 0), (0.2, 67, 0), (0.5, 68, 100), (0.6, 160, 40)]:
        way.look(now_s, position * MILLION, waiting * MILLION)
    assert way.is_direct
