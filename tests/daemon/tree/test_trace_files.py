"""trace, trace_pipe and trace_pipe_raw: contents, consuming, errors, waiting."""

import errno
import os
import time

import pytest

from tests.daemon.consumers.ftrace.text.text_model import text_options
from tests.daemon.tree.world import World, errno_of
from tests.protocol.pages.page_writer import decode_page
from utracefs_protocol.messages.tracefs import ONE_LINE
from utracefsd.consumers.ftrace.text.headers import header
from utracefsd.events.event import Event


def head(entries: int, written: int) -> bytes:
    """tests/daemon/consumers/ftrace/text has what it looks like."""
    overruns = written - entries
    return header(
        text_options(), entries=entries, overruns=overruns, is_empty=False, online_cpus=2, kernel_release=b""
    )


@pytest.fixture
def event(world: World) -> Event:
    """Enabled, with the clock mono, so that time stamps are the emitted ones."""
    event = world.event(b"alpha u32 n")
    world.w(b"trace_clock", b"mono")
    world.w(b"events/enable", b"1")
    return event


def emit(world: World, event: Event, *numbers: int, cpu: int = 0) -> None:
    for number in numbers:
        assert world.emit(event, number.to_bytes(4, "little"), cpu=cpu) == 0


def line(number: int, cpu: int = 0, us: int | None = None) -> bytes:
    stamp = b"    1.%06d" % (number if us is None else us)
    return b"             drv-46      [%03d] ..... %s: alpha: n=0x%x (%d)\n" % (cpu, stamp, number, number)


# trace


def test_empty(world: World) -> None:
    assert world.cat(b"trace") == head(0, 0)
    assert len(world.cat(b"trace")) == 515


def test_reading_does_not_consume(world: World, event: Event) -> None:
    emit(world, event, 1, 2)
    emit(world, event, 3, cpu=1)
    expected = head(3, 3) + line(1) + line(2) + line(3, cpu=1)
    assert world.cat(b"trace") == expected
    assert world.cat(b"trace") == expected
    assert world.cat(b"per_cpu/cpu1/trace") == head(3, 3) + line(3, cpu=1)


def test_what_clears(world: World, event: Event) -> None:
    emit(world, event, 1)
    emit(world, event, 2, cpu=1)
    world.open(b"trace", os.O_RDWR).close()
    world.open(b"trace", os.O_RDONLY | os.O_TRUNC).close()
    assert world.wa(b"trace", b"anything") == 9
    assert len(world.trace_lines()) == 2
    world.wn(b"per_cpu/cpu0/trace", b"")
    assert world.cat(b"trace") == head(1, 1) + line(2, cpu=1)
    assert world.wn(b"trace", b"") == 0
    assert world.cat(b"trace") == head(0, 0)


def test_reading_in_pieces(world: World, event: Event) -> None:
    emit(world, event, *range(1, 200))
    whole = world.cat(b"trace")
    for size in (1, 7, 515, 4096, 65536):
        file = world.open(b"trace")
        pieces = []
        while piece := file.read(size):
            assert len(piece) <= size
            pieces.append(piece)
        assert b"".join(pieces) == whole
        assert file.read(size) == b""
        file.seek(0)
        assert file.read(100) == whole[:100]
        file.seek(600)
        assert file.read(100) == whole[600:700]
        file.seek(10**9)
        assert file.read(100) == b""


def test_clearing_and_resizing_while_it_is_read(world: World, event: Event) -> None:
    emit(world, event, *range(1, 200))
    for path, text in (
        (b"trace", b""),
        (b"buffer_size_kb", b"100"),
        (b"buffer_subbuf_size_kb", b"16"),
        (b"trace_clock", b"mono"),
    ):
        file = world.open(b"trace")
        file.read(1000)
        world.w(path, text)
        emit(world, event, *range(1, 50))
        while file.read(1000):
            pass
        file.close()


def test_a_large_trace_is_rendered_during_the_read(world: World, event: Event) -> None:
    world.w(b"buffer_size_kb", b"8000")
    emit(world, event, *range(100_000))
    start = time.process_time()
    file = world.open(b"trace")
    file.read(4096)
    file.close()
    first = time.process_time() - start
    start = time.process_time()
    assert world.cat(b"trace").count(b"\n") == 100_012
    whole = time.process_time() - start
    assert first < whole / 10
    assert whole < 3e-6 * 100_000 * 3  # 3 us a line is the aim; three times that on a busy machine


def test_pause_on_trace(world: World, event: Event) -> None:
    world.w(b"trace_options", b"pause-on-trace")
    one, two = world.open(b"trace"), world.open(b"per_cpu/cpu0/trace")
    world.open(b"trace", os.O_WRONLY).close()
    emit(world, event, 1)
    one.close()
    emit(world, event, 2)
    assert world.cat(b"tracing_on") == b"1\n"
    assert errno_of(world.w, b"trace_marker", b"x") == errno.EBADF
    two.close()
    two.close()
    emit(world, event, 3)
    assert world.bodies() == [b"alpha: n=0x3 (3)"]


def test_records_of_events_that_are_gone(world: World, event: Event) -> None:
    emit(world, event, 1)
    number = event.id
    world.w(b"events/enable", b"0")
    world.let_go(event)
    assert world.bodies() == [b"Unknown type %d" % number]
    assert world.event(b"beta u32 m").id != number
    assert world.bodies() == [b"Unknown type %d" % number]
    assert world.event(b"alpha u32 n").id == number
    assert world.bodies() == [b"alpha: n=0x1 (1)"]


def test_overwritten_records_are_counted(world: World, event: Event) -> None:
    world.w(b"buffer_size_kb", b"8")
    emit(world, event, *range(2000))
    left = len(world.trace_lines())
    assert head(left, 2000).splitlines()[2] in world.cat(b"trace")
    stats = world.cat(b"per_cpu/cpu0/stats")
    assert b"entries: %d\noverrun: %d\ncommit overrun: 0\n" % (left, 2000 - left) in stats
    assert world.cat(b"trace_pipe").startswith(b"CPU:0 [LOST %d EVENTS]\n" % (2000 - left))


# trace_pipe


def test_pipe_reads_are_short_and_lose_nothing(world: World, event: Event) -> None:
    emit(world, event, *range(1, 300))
    file = world.open(b"trace_pipe", os.O_NONBLOCK)
    whole = b"".join(line(number) for number in range(1, 300))
    got = file.read(1_000_000)
    assert 8000 < len(got) <= 8192
    while len(got) < len(whole):
        piece = file.read(100)
        assert 0 < len(piece) <= 100
        got += piece
    assert got == whole
    assert errno_of(file.read, 100) == errno.EAGAIN


def test_reads_of_whole_lines_are_as_long_as_wanted(world: World, event: Event) -> None:
    file = world.open(b"trace_pipe", os.O_NONBLOCK | ONE_LINE)
    emit(world, event, *range(1, 600))
    whole = b"".join(line(number) for number in range(1, 600))
    assert file.read(10_001) + file.read(10_001) == whole[:20_002]
    emit(world, event, 600)
    assert file.read(1_000_000) == whole[20_002:] + line(600)


def test_small_reads_leave_records_in_the_buffer(world: World, event: Event) -> None:
    emit(world, event, *range(1, 100))
    file = world.open(b"trace_pipe", os.O_NONBLOCK)
    assert file.read(10) == line(1)[:10]
    assert file.read(0) == b""
    assert len(world.trace_lines()) == 98  # only formatted ones are gone
    assert file.read(1000) == line(1)[10:]  # the rest first, alone


def test_pipe_without_data(world: World, event: Event) -> None:
    waiting, polling = world.open(b"trace_pipe"), None
    assert waiting.blocking
    assert errno_of(waiting.read, 100) == errno.EAGAIN
    assert not waiting.ready()
    world.w(b"tracing_on", b"0")
    assert errno_of(waiting.read, 100) == errno.EAGAIN  # it has returned nothing yet: continues to wait
    world.w(b"tracing_on", b"1")
    emit(world, event, 1)
    assert waiting.ready()
    assert waiting.read(100) == line(1)
    assert errno_of(waiting.read, 100) == errno.EAGAIN
    world.w(b"tracing_on", b"0")
    assert waiting.ready()
    assert waiting.read(100) == b""  # the end
    world.w(b"tracing_on", b"1")
    emit(world, event, 2)
    assert waiting.read(100) == line(2)
    waiting.close()
    polling = world.open(b"trace_pipe", os.O_NONBLOCK)
    emit(world, event, 3)
    assert polling.read(100) == line(3)
    world.w(b"tracing_on", b"0")
    assert errno_of(polling.read, 100) == errno.EAGAIN  # never the end when it does not block
    assert not polling.blocking


def test_pipe_has_one_opener(world: World) -> None:
    whole = world.open(b"trace_pipe")
    for path in (b"trace_pipe", b"per_cpu/cpu0/trace_pipe", b"per_cpu/cpu1/trace_pipe"):
        assert errno_of(world.open, path) == errno.EBUSY
    whole.close()
    zero, one = world.open(b"per_cpu/cpu0/trace_pipe"), world.open(b"per_cpu/cpu1/trace_pipe")
    for path in (b"trace_pipe", b"per_cpu/cpu0/trace_pipe"):
        assert errno_of(world.open, path) == errno.EBUSY
    zero.close()
    assert errno_of(world.open, b"trace_pipe") == errno.EBUSY
    one.close()
    world.open(b"trace_pipe").close()
    world.open(b"per_cpu/cpu0/trace_pipe_raw")
    world.open(b"per_cpu/cpu0/trace_pipe_raw")


def test_pipe_follows_options_clocks_and_buffers(world: World, event: Event) -> None:
    file = world.open(b"trace_pipe", os.O_NONBLOCK)
    emit(world, event, 1)
    assert file.read(1000) == line(1)
    world.w(b"trace_options", b"nocontext-info")
    emit(world, event, 2)
    assert file.read(1000) == b"alpha: n=0x2 (2)\n"
    world.w(b"buffer_subbuf_size_kb", b"8")
    emit(world, event, 3)
    assert file.ready()
    assert file.read(1000) == b"alpha: n=0x3 (3)\n"
    world.w(b"options/context-info", b"1")
    world.w(b"trace_clock", b"counter")
    emit(world, event, 4)
    assert b"." not in file.read(1000).split(b"] ..... ")[1].split(b":")[0]


@pytest.mark.parametrize("name", [b"trace_pipe", b"trace_pipe_raw"])
def test_a_watcher_of_one_cpu_is_woken_at_buffer_percent(world: World, event: Event, name: bytes) -> None:
    """As trace_poll() does: the fill in sub-buffers, also the one being written."""
    world.w(b"buffer_size_kb", b"32")
    buffer = world.instance.buffer
    file = world.open(b"per_cpu/cpu0/" + name)
    for percent in (100, 50, 1):
        world.w(b"trace", b"")
        world.w(b"buffer_percent", b"%d" % percent)
        assert not file.ready()
        filled = 0
        while not file.ready():
            assert buffer.percent_full(0) < percent
            emit(world, event, filled)
            filled += 1
        assert buffer.percent_full(0) >= percent
    world.w(b"trace", b"")
    world.w(b"buffer_percent", b"0")
    assert not file.ready()
    emit(world, event, 1)
    assert file.ready()


def test_a_watcher_of_all_cpus_is_woken_by_the_first_record(world: World, event: Event) -> None:
    world.w(b"buffer_percent", b"100")
    file = world.open(b"trace_pipe")
    assert not file.ready()
    emit(world, event, 1)
    assert file.ready()


def test_with_the_option_block_a_pipe_is_always_ready(world: World) -> None:
    world.w(b"trace_options", b"block")
    assert world.open(b"per_cpu/cpu0/trace_pipe_raw").ready()


# trace_pipe_raw


def test_raw_in_small_pieces(world: World, event: Event) -> None:
    emit(world, event, *range(10))
    file = world.open(b"per_cpu/cpu0/trace_pipe_raw", os.O_NONBLOCK)
    assert file.read(0) == b""
    assert file.read(16) == b""  # no room for a record: nothing is consumed
    assert len(world.trace_lines()) == 10
    first = file.read(100)
    assert len(first) == 100
    rest = file.read(65536)
    assert len(rest) == 3996  # of the same page, before anything new
    taken = decode_page(first + rest).records
    assert 0 < len(taken) < 10
    assert len(world.trace_lines()) == 10 - len(taken)
    assert len(decode_page(file.read(4096)).records) == 10 - len(taken)


def test_raw_in_larger_sub_buffers(world: World, event: Event) -> None:
    file = world.open(b"per_cpu/cpu0/trace_pipe_raw", os.O_NONBLOCK)
    world.w(b"buffer_subbuf_size_kb", b"8")
    emit(world, event, 1)
    assert len(file.read(65536)) == 8192


# stats


def test_dropped_records_are_lost_in_the_events_stats(world: World, event: Event) -> None:
    world.w(b"buffer_size_kb", b"1")
    world.w(b"options/overwrite", b"0")
    emit(world, event, *range(2000))
    kept = len(world.trace_lines())
    assert world.cat(b"events/user_events/alpha/stats") == (
        b"emitted: 2000\nbytes: 8000\nftrace: recorded %d filtered 0 lost %d\n" % (kept, 2000 - kept)
    )
    assert b"dropped events: %d\n" % (2000 - kept) in world.cat(b"per_cpu/cpu0/stats")


# snapshot

SNAPSHOT = b"""\
# tracer: nop
#
#
# * Snapshot is %s *
#
# Snapshot commands:
# echo 0 > snapshot : Clears and frees snapshot buffer
# echo 1 > snapshot : Allocates snapshot buffer, if not already allocated.
#                      Takes a snapshot of the main buffer.
# echo 2 > snapshot : Clears snapshot buffer (but does not allocate or free)
#                      (Doesn't have to be '2' works with any number that
#                       is not a '0' or '1')
"""


def test_snapshot_is_shown_as_trace_is(world: World, event: Event) -> None:
    assert world.cat(b"snapshot") == SNAPSHOT % b"freed"
    emit(world, event, 1)
    emit(world, event, 2, cpu=1)
    recorded = world.cat(b"trace")
    world.w(b"snapshot", b"1")
    assert world.cat(b"snapshot") == recorded
    assert world.cat(b"trace") == head(0, 0)
    assert world.cat(b"per_cpu/cpu1/snapshot") == head(2, 2) + line(2, cpu=1)
    world.w(b"per_cpu/cpu1/snapshot", b"2")
    assert world.cat(b"per_cpu/cpu1/snapshot").startswith(
        b"# tracer: nop\n#\n#\n# * Snapshot is allocated *\n"
    )
    assert world.cat(b"snapshot") == head(1, 1) + line(1)
    world.w(b"snapshot", b"2")
    assert world.cat(b"snapshot") == SNAPSHOT % b"allocated"
    world.w(b"snapshot", b"0")
    assert world.cat(b"snapshot") == SNAPSHOT % b"freed"


def test_what_is_written_to_snapshot(world: World, event: Event) -> None:
    emit(world, event, 1)
    assert errno_of(world.w, b"per_cpu/cpu0/snapshot", b"0") == errno.EINVAL
    assert world.bodies() == [b"alpha: n=0x1 (1)"]
    world.w(b"snapshot", b"1")
    world.open(b"snapshot", os.O_WRONLY | os.O_TRUNC).close()  # a shell's > does this first
    assert world.bodies(b"snapshot") == [b"alpha: n=0x1 (1)"]
    world.free_memory_kb = 0
    world.w(b"snapshot", b"0")
    assert errno_of(world.w, b"snapshot", b"1") == errno.ENOMEM


def test_snapshot_does_not_pause_tracing(world: World, event: Event) -> None:
    world.w(b"trace_options", b"pause-on-trace")
    world.w(b"snapshot", b"1")
    file = world.open(b"snapshot")
    emit(world, event, 1)
    assert world.bodies() == [b"alpha: n=0x1 (1)"]
    file.close()


def test_snapshot_raw_consumes_the_snapshot(world: World, event: Event) -> None:
    raw = world.open(b"per_cpu/cpu0/snapshot_raw", os.O_RDONLY | os.O_NONBLOCK)
    assert errno_of(raw.read, 4096) == errno.EAGAIN
    assert not raw.ready()
    emit(world, event, 1, 2)
    world.w(b"snapshot", b"1")
    emit(world, event, 3)
    world.w(b"buffer_percent", b"0")
    assert raw.ready()
    page = decode_page(raw.read(4096))
    assert [record.data[8] for record in page.records] == [1, 2]
    assert errno_of(raw.read, 4096) == errno.EAGAIN
    assert world.cat(b"snapshot") == SNAPSHOT % b"allocated"
    assert world.bodies() == [b"alpha: n=0x3 (3)"]
    assert errno_of(world.w, b"per_cpu/cpu0/snapshot_raw", b"1") == errno.EINVAL


# trace_raw


def test_what_there_is_is_copied_and_stays(world: World, event: Event) -> None:
    emit(world, event, 1, 2, 3)
    for _ in range(2):
        file = world.open(b"per_cpu/cpu0/trace_raw")
        assert errno_of(file.read, 100) == errno.EINVAL
        page = decode_page(file.read(4096))
        assert [record.data[8:12] for record in page.records] == [n.to_bytes(4, "little") for n in (1, 2, 3)]
        assert file.read(4096) == b""
        file.close()
    assert world.cat(b"per_cpu/cpu1/trace_raw") == b""
    assert world.cat(b"trace").count(b"alpha:") == 3
