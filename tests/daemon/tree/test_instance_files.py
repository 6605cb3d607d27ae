"""The control files of an instance: texts, accepted values, and the errno of values that are bad for one file
alone; test_bad_input.py has those of all files."""

import errno
import os

import pytest

from tests.daemon.tree.world import PID, World, errno_of

# Values with one writer and one text.


@pytest.mark.parametrize(
    ("path", "fresh", "writes", "bad"),
    [
        (b"tracing_on", b"1\n", {b"0": b"0\n", b"5": b"1\n", b"00\n": b"0\n"}, []),
        (b"buffer_percent", b"50\n", {b"0": b"0\n", b"100\n": b"100\n"}, [b"101"]),
        (
            b"buffer_subbuf_size_kb",
            b"4\n",
            {b"1": b"4\n", b"3": b"4\n", b"5": b"8\n", b"16": b"16\n", b"512": b"512\n", b"4\n": b"4\n"},
            [b"0", b"1024", b"513"],
        ),
        (b"saved_cmdlines_size", b"6552\n", {b"128": b"6552\n", b"32768\n": b"45874\n"}, [b"0", b"32769"]),
        (b"tracing_cpumask", b"3\n", {b"1": b"1\n", b"0\n": b"0\n", b"00000003": b"3\n"}, []),
        (
            b"current_tracer",
            b"nop\n",
            {b"nop": b"nop\n", b"nop \n": b"nop\n"},
            [b"function", b" nop", b"nop x"],
        ),
        (b"options/overwrite", b"1\n", {b"0": b"0\n", b"01": b"1\n", b"00\n": b"0\n"}, [b"2"]),
    ],
)
def test_values(
    world: World, path: bytes, fresh: bytes, writes: dict[bytes, bytes], bad: list[bytes]
) -> None:
    assert world.cat(path) == fresh
    for text, shown in writes.items():
        assert world.wn(path, text) == len(text)
        assert world.cat(path) == shown
    for text in bad:
        assert errno_of(world.wn, path, text) == errno.EINVAL
    assert world.cat(path) == shown


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (b"available_tracers", b"nop\n"),
        (b"timestamp_mode", b"[delta] absolute\n"),
        (b"printk_formats", b""),
        (b"saved_tgids", b""),
        (b"error_log", b""),
        (b"set_event", b""),
        (b"standing_events", b""),
    ],
)
def test_fixed_texts(world: World, path: bytes, text: bytes) -> None:
    assert world.cat(path) == text


# Sizes.


def test_sizes_before_and_after_the_first_use(world: World) -> None:
    assert world.cat(b"buffer_size_kb") == b"7 (expanded: 1408)\n"
    assert world.cat(b"buffer_total_size_kb") == b"14 (expanded: 2816)\n"
    assert world.cat(b"per_cpu/cpu0/buffer_size_kb") == b"7\n"
    world.w(b"trace_marker", b"does not expand")
    assert world.cat(b"buffer_size_kb") == b"7 (expanded: 1408)\n"
    world.event(b"alpha")
    world.w(b"events/user_events/alpha/enable", b"1")
    assert world.cat(b"buffer_size_kb") == b"1410\n"
    assert world.cat(b"buffer_total_size_kb") == b"2820\n"
    assert world.cat(b"per_cpu/cpu1/buffer_size_kb") == b"1410\n"


def test_a_tracer_change_expands_even_if_refused(world: World) -> None:
    assert errno_of(world.w, b"current_tracer", b"function") == errno.EINVAL
    assert world.cat(b"buffer_size_kb") == b"1410\n"


@pytest.mark.parametrize(
    ("request_kb", "shown"), [(1, 7), (8, 11), (16, 19), (64, 67), (100, 103), (1408, 1410)]
)
def test_sizes_are_rounded(world: World, request_kb: int, shown: int) -> None:
    assert world.w(b"buffer_size_kb", b"%d" % request_kb) > 0
    assert world.cat(b"buffer_size_kb") == b"%d\n" % shown
    assert world.cat(b"buffer_total_size_kb") == b"%d\n" % (2 * shown)


def test_one_cpu_may_differ(world: World) -> None:
    world.w(b"buffer_size_kb", b"64")
    world.w(b"per_cpu/cpu1/buffer_size_kb", b"100")
    assert world.cat(b"buffer_size_kb") == b"X\n"
    assert world.cat(b"buffer_total_size_kb") == b"170\n"
    assert world.cat(b"per_cpu/cpu0/buffer_size_kb") == b"67\n"
    assert world.cat(b"per_cpu/cpu1/buffer_size_kb") == b"103\n"
    world.w(b"buffer_subbuf_size_kb", b"8")
    assert world.cat(b"per_cpu/cpu0/buffer_size_kb") == b"71\n"
    assert world.cat(b"per_cpu/cpu1/buffer_size_kb") == b"103\n"


@pytest.mark.parametrize("path", [b"buffer_size_kb", b"per_cpu/cpu0/buffer_size_kb"])
def test_bad_sizes(world: World, path: bytes) -> None:
    for text in (b"0", b"-1", b"", b"x", b"1 (expanded: 2)"):
        assert errno_of(world.wn, path, text) == errno.EINVAL
    for text in (b"2000000", b"18446744073709551615"):
        assert errno_of(world.wn, path, text) == errno.ENOMEM
    assert world.cat(b"buffer_size_kb") == b"7 (expanded: 1408)\n"


def test_no_memory_for_the_real_buffer(world: World) -> None:
    world.free_memory_kb = 100
    event = world.event(b"alpha")
    assert errno_of(world.w, b"events/enable", b"1") == errno.ENOMEM
    assert world.cat(b"events/enable") == b"0\n"
    assert event.status == 0


def test_resizing_keeps_what_fits(world: World) -> None:
    event = world.event(b"alpha u32 a")
    world.w(b"events/enable", b"1")
    for number in range(10):
        world.emit(event, number.to_bytes(4, "little"))
    world.w(b"buffer_size_kb", b"64")
    assert len(world.trace_lines()) == 10
    world.w(b"buffer_subbuf_size_kb", b"8")
    assert world.trace_lines() == []
    world.emit(event, b"\1\0\0\0")
    assert world.bodies() == [b"alpha: a=0x1 (1)"]


def test_free_buffer(world: World) -> None:
    world.w(b"buffer_size_kb", b"100")
    world.open(b"free_buffer", os.O_RDONLY).close()
    assert world.cat(b"buffer_size_kb") == b"103\n"
    assert world.w(b"free_buffer", b"anything") == 9
    assert world.cat(b"buffer_size_kb") == b"7\n"
    assert world.cat(b"tracing_on") == b"1\n"
    world.w(b"trace_options", b"disable_on_free")
    world.open(b"free_buffer", os.O_WRONLY).close()
    assert world.cat(b"tracing_on") == b"0\n"


# Clocks and options.


def test_clocks(world: World) -> None:
    text = world.cat(b"trace_clock")
    assert text.startswith(b"[local] global counter uptime perf mono mono_raw boot tai")
    event = world.event(b"alpha")
    world.w(b"events/enable", b"1")
    for clock in text.replace(b"[", b"").replace(b"]", b"").split():
        world.emit(event, b"")
        assert len(world.trace_lines()) == 1
        assert world.w(b"trace_clock", clock) == len(clock) + 1
        assert b"[%s]" % clock in world.cat(b"trace_clock")
        assert world.trace_lines() == []  # every success clears
    world.emit(event, b"")
    for bad in (b"", b"bogus", b"[mono]", b"mono boot", b"x" * 64):
        assert errno_of(world.wn, b"trace_clock", bad) == errno.EINVAL
    assert len(world.trace_lines()) == 1


def test_counter_ticks_as_the_kernels_does(world: World) -> None:
    """Clearing takes a tick, and setting the clock one more for the spare buffer that the kernel has."""
    event = world.event(b"alpha")
    world.w(b"trace_clock", b"counter")
    start = world.instance.settings.time_start
    world.w(b"events/enable", b"1")
    world.emit(event, b"")
    assert world.trace_lines() == [
        b"             drv-46      [000] ..... %12d: alpha:No fields found" % (start + 2)
    ]
    world.w(b"options/latency-format", b"1")
    assert world.trace_lines() == [b"     drv-46        0.....    2: alpha:No fields found"]


def test_options(world: World) -> None:
    text = world.cat(b"trace_options")
    assert len(text) == 406  # tests/conformance/6.12.117/09_trace_text.txt has it
    assert len(world.tree.list_dir(b"options")) == 32
    for line in text.split():
        name = line.removeprefix(b"no")
        if name in (b"test_nop_refuse", b"trace_printk_dest"):
            continue
        for word, shown in (
            (b"no" + name, b"0\n"),
            (name, b"1\n"),
            (line, b"0\n" if line != name else b"1\n"),
        ):
            assert world.w(b"trace_options", word) == len(word) + 1
            assert world.cat(b"options/" + name) == shown
        world.w(b"options/" + name, b"0")
        assert b"\nno%s\n" % name in b"\n" + world.cat(b"trace_options")
        world.w(b"options/" + name, b"0" if line != name else b"1")
    assert world.cat(b"trace_options") == text


def test_options_that_are_refused(world: World) -> None:
    for word in (b"bogus", b"", b"raw hex", b"nonoraw", b"NORAW", b"notrace_printk_dest", b"x" * 64):
        assert errno_of(world.wn, b"trace_options", word) == errno.EINVAL
    assert errno_of(world.w, b"trace_options", b"test_nop_refuse") == errno.EINVAL
    assert errno_of(world.w, b"options/test_nop_refuse", b"1") == errno.EINVAL
    assert world.w(b"options/test_nop_refuse", b"0") == 2


# Which threads and cpus.


def test_cpumask(world: World) -> None:
    event = world.event(b"alpha")
    world.w(b"events/enable", b"1")
    world.w(b"tracing_cpumask", b"2")
    for cpu in (0, 1):
        world.emit(event, b"", cpu=cpu)
    assert world.trace_lines(b"per_cpu/cpu0/trace") == []
    assert len(world.trace_lines(b"per_cpu/cpu1/trace")) == 1


def test_tracing_off_records_nothing(world: World) -> None:
    event = world.event(b"alpha")
    world.w(b"events/enable", b"1")
    world.w(b"tracing_on", b"0")
    assert world.emit(event, b"") == 0
    assert event.status == 1
    world.w(b"tracing_on", b"1")
    assert world.trace_lines() == []


# set_event and standing_events.


def test_set_event(world: World) -> None:
    for name in (b"one", b"two", b"three"):
        world.event(name)
    assert world.w(b"set_event", b"user_events:one") == 16
    assert world.wa(b"set_event", b"three") == 6
    assert world.cat(b"set_event") == b"user_events:three\nuser_events:one\n"
    assert world.cat(b"available_events") == b"user_events:three\nuser_events:two\nuser_events:one\n"
    assert world.wa(b"set_event", b"!one two") == 5  # one word a write
    assert world.wa(b"set_event", b"!one") == 5
    assert world.cat(b"set_event") == b"user_events:three\n"
    for bad in (b"t*", b"none", b"!none", b"user_events/one", b"one,two", b"#", b"!", b"x" * 128):
        assert errno_of(world.wa, b"set_event", bad) == errno.EINVAL
    assert world.wa(b"set_event", b"") == 1
    assert world.cat(b"set_event") == b"user_events:three\n"
    assert errno_of(world.w, b"set_event", b"none") == errno.EINVAL
    assert world.cat(b"set_event") == b""  # truncating had disabled all before


def test_standing_events(world: World) -> None:
    world.event(b"web_request")
    assert world.wa(b"standing_events", b"user_events:web_*") == 18
    assert world.wa(b"standing_events", b"db_*") == 5
    assert world.cat(b"standing_events") == b"user_events:web_*\ndb_*\n"
    late = world.event(b"web_reply")
    world.event(b"db_query u32 a", 2)
    world.event(b"other")
    assert late.status == 1
    assert (
        world.cat(b"set_event")
        == b"user_events_multi:db_query.0\nuser_events:web_reply\nuser_events:web_request\n"
    )
    assert world.wa(b"standing_events", b"!db_*") == 6
    world.event(b"db_close")
    assert world.cat(b"set_event").count(b"\n") == 3
    assert world.cat(b"standing_events") == b"user_events:web_*\n"
    for bad in (b"!db_*", b"a:b:c", b"!", b"x" * 128):
        assert errno_of(world.wa, b"standing_events", bad) == errno.EINVAL
    assert world.wn(b"standing_events", b"") == 0
    assert world.cat(b"standing_events") == b""
    world.event(b"web_again")
    assert world.cat(b"set_event").count(b"\n") == 3


def test_standing_events_have_their_buffer_before_anything_is_recorded(world: World) -> None:
    world.w(b"standing_events", b"*")
    assert world.cat(b"buffer_size_kb") == b"1410\n"


# Markers.


def test_tgids(world: World) -> None:
    event = world.event(b"alpha")
    world.w(b"events/enable", b"1")
    world.emit(event, b"")
    world.w(b"trace_options", b"record-tgid")
    assert b"drv-46      (-------) [000]" in world.cat(b"trace")
    world.w(b"trace_marker", b"x")
    assert b"drv-46      (     46) [000]" in world.cat(b"trace")
    assert world.cat(b"saved_tgids") == b"46 46\n"
    assert world.cat(b"saved_cmdlines") == b"%d drv\n" % PID


def test_the_function_of_a_marker_has_an_address(world: World) -> None:
    """seq_print_ip_sym(): 6.18 prints `tracing_mark_write+0x8a/0x170` and ` <ffffffff81498b1a>`."""
    world.w(b"trace_marker", b"m")
    world.w(b"options/sym-offset", b"1")
    assert world.bodies() == [b"tracing_mark_write+0x0/0x170: m"]
    world.w(b"options/sym-addr", b"1")
    assert world.bodies() == [b"tracing_mark_write+0x0/0x170 <ffffffff81000000>: m"]
    world.w(b"options/sym-offset", b"0")
    assert world.bodies() == [b"tracing_mark_write <ffffffff81000000>: m"]
    world.w(b"options/raw", b"1")
    assert world.cat(b"trace").endswith(b"# ffffffff81000000 m\n")


def test_which_open_files_keep_their_instance(world: World) -> None:
    """As on 6.18: all but those below options/, and some of an event's, which test_events_files.py has."""
    world.event(b"alpha u32 a")
    world.tree.mkdir(b"instances/x")
    names = [name for name, kind in world.tree.list_dir(b"instances/x") if kind == "f"]
    names += [b"per_cpu/cpu0/" + name for name, _ in world.tree.list_dir(b"instances/x/per_cpu/cpu0")]
    names += [b"events/" + name for name in (b"enable", b"header_page", b"header_event")]
    names += [b"events/user_events/" + name for name in (b"enable", b"alpha/enable", b"alpha/inject")]
    world.tree.rmdir(b"instances/x")
    assert len(names) > 25
    for name in names:
        world.tree.mkdir(b"instances/x")
        path = b"instances/x/" + name
        read_only = world.tree.stat(path).mode & 0o400
        file = world.open(path, os.O_RDONLY if read_only else os.O_WRONLY)
        assert errno_of(world.tree.rmdir, b"instances/x") == errno.EBUSY, name
        file.close()
        if name != b"remove_on_close":  # which goes by itself
            world.tree.rmdir(b"instances/x")
    world.tree.mkdir(b"instances/x")
    option = world.open(b"instances/x/options/raw", os.O_RDWR)
    world.tree.rmdir(b"instances/x")
    assert option.read(10) == b"0\n"
    option.close()
