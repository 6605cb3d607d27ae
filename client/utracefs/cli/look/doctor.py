"""`utracefs doctor`: why does no record arrive? Checks each condition on a record's path.

    sockets → permission → daemon answers → status page
    → event registered → enabled → tracing_on → buffer → lost

and then, without EVENT, the requirements of programs that use the kernel's user_events
(cli/look/kernel_abi.py).

Each result is `ok`, `note` (may be intended) or `FAIL` with what to do; exit status 1 with a FAIL. Checks
that depend on a failed one are left out.
"""

import contextlib
import errno
import mmap
import os
import sys
from collections.abc import Generator, Iterator, Sequence
from typing import Any

import attrs
import click

import utracefs
from utracefs.cli import COMMAND_SETTINGS, Failure
from utracefs.cli.common import (
    HELLO_S,
    Finding,
    all_buffers,
    available_events,
    connect,
    directory_option,
    echo,
    echo_json,
    event_stats,
    events_argument,
    fail,
    json_option,
    note,
    ok,
    refused_events,
    standing_events,
    telling_of_wait,
    why_no_connection,
)
from utracefs.cli.instance_option import Place, instance_names
from utracefs.cli.look.status import buffer_state, users_of
from utracefs.cli.losses import IN_RINGS, OF_ALL, all_lost, ever, lost_text, share
from utracefs.cli.run.ledger import read_stats
from utracefs.tree.event_names import EventName, matches, select, similar_event
from utracefs.tree.rpc import Rpc, checked
from utracefs.tree.runtime_dir import candidates
from utracefs.tree.tracefs import Tracefs
from utracefs_protocol.messages.data import MmapStatus, StatusMapped
from utracefs_protocol.places import DATA_SOCKET
from utracefs_protocol.text import text_of

MANY = 3
"""Maximum of names printed of a list."""


@click.command(context_settings=COMMAND_SETTINGS)
@directory_option
@events_argument(required=False)
@json_option
def doctor(directory: str | None, events: tuple[str, ...], as_json: bool) -> int:
    """Say why no record arrives, of any event or of EVENTs.

    Without EVENTs also say how programs that use the kernel's user_events could be traced here.
    """
    findings: list[Finding] = []
    for finding in examine(directory, events):
        findings.append(finding)
        if not as_json:
            echo(f"{finding.level:<4}  {finding.what}: {finding.text}")
    if as_json:
        echo_json([attrs.asdict(finding) for finding in findings])
    return int(any(finding.level == "FAIL" for finding in findings))


def examine(directory: str | None, patterns: tuple[str, ...]) -> Iterator[Finding]:
    """Yields the results as they are found."""
    yield ok("client", f"utracefs {utracefs.__version__}, Python {sys.version.split()[0]}, {_compiled()}")
    found, chosen = yield from _examine_directories(directory)
    if chosen is not None:
        yield from _examine_daemon(found, chosen, patterns)
    if not patterns:
        try:
            from utracefs.cli.look.kernel_abi import examine_kernel_abi
        except ImportError as error:
            yield note("mount", f"its compiled module is missing ({error})")
            return
        yield from examine_kernel_abi(None if chosen is None else os.path.join(chosen, DATA_SOCKET))


def _examine_daemon(found: list[str], chosen: str, patterns: tuple[str, ...]) -> Iterator[Finding]:
    if len(found) > 1:
        yield note("daemons", f"{' and '.join(found)} both have sockets; programs use the first")
    answers = yield from _examine_data_socket(chosen)
    if not answers:
        return
    try:
        tree = connect(chosen)
    except Failure as error:
        yield fail(error.about, error.reason)
        return
    with tree:
        try:
            yield from _examine_tree(tree, patterns)
        except OSError as error:
            yield fail(str(error.filename), error.strerror or str(error))


def _compiled() -> str:
    try:
        import utracefs.producer._event  # noqa: F401
    except ImportError as error:
        return f"but its compiled module is missing ({error})"
    return "compiled module there"


def _examine_directories(directory: str | None) -> Generator[Finding, None, tuple[list[str], str | None]]:
    """Returns the directories that have sockets, and the one that programs would use."""
    places = candidates(directory)
    if directory is None and os.environ.get("UTRACEFS_DIR"):
        yield note("UTRACEFS_DIR", f"is {places[0]}; no other directory is looked at")
    there = [place for place in places if os.path.exists(os.path.join(place, DATA_SOCKET))]
    hidden = [place for place in places if place not in there and not _may_look(place)]
    for place in hidden:
        yield note(place, "permission denied; the user who runs a daemon there has to grant access")
    if not there:
        none = "none that we may see" if hidden else "none"
        yield fail("sockets", f"{none} in {' nor '.join(places)}; start a daemon with `utracefs daemon`")
        if not os.access("/dev/shm", os.W_OK | os.X_OK):
            yield fail("/dev/shm", "a daemon cannot write there, which it needs; mount a tmpfs on it")
        return there, None
    yield ok("sockets", f"in {there[0]}")
    return there, there[0]


def _may_look(place: str) -> bool:
    try:
        os.stat(os.path.join(place, DATA_SOCKET))
    except PermissionError:
        return False
    except OSError:
        return True
    return True


def _examine_data_socket(directory: str) -> Generator[Finding, None, bool]:
    """Do the first steps of an application: connect, and map the status page. Returns whether the daemon
    answers."""
    path = os.path.join(directory, DATA_SOCKET)
    try:
        with telling_of_wait(directory), Rpc(DATA_SOCKET, directory, timeout_s=HELLO_S) as data:
            size = checked(StatusMapped.from_wire, data.call(MmapStatus(), path), path).size
            (fd, *_) = data.take_fds()
            try:
                mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ).close()
            finally:
                os.close(fd)
    except PermissionError:
        mode = _mode(path)
        yield fail(path, f"permission denied (mode {mode}); the group `tracing` may connect, if it exists")
    except (OSError, ValueError) as error:
        text = why_no_connection(error) if isinstance(error, OSError) else f"bad answer: {error}"
        yield fail(path, text)
        return not isinstance(error, TimeoutError | BlockingIOError)
    else:
        yield ok(path, f"applications can connect; status page of {size - 1} events can be read")
    return True


def _mode(path: str) -> str:
    with contextlib.suppress(OSError):
        return f"{os.stat(path).st_mode & 0o777:04o}"
    return "unknown"


def _examine_tree(tree: Tracefs, patterns: tuple[str, ...]) -> Iterator[Finding]:
    state = buffer_state(tree)
    yield ok("daemon", f"answers in {tree.directory}")
    yield from _examine_faults(tree)
    events = available_events(tree)
    keeps_away = list(_examine_what_keeps_away(tree, state))
    filtering = any(finding.level != "ok" for finding in keeps_away)
    yield from _examine_events(tree, patterns, events, standing_events(tree), filtering=filtering)
    yield from keeps_away
    yield from _examine_buffer(tree, state)


def _examine_faults(tree: Tracefs) -> Iterator[Finding]:
    """Unexpected errors of the daemon, refusals and uncounted losses; an older daemon has no such file."""
    try:
        lines = tree.read_file("daemon_stats").decode().splitlines()
    except FileNotFoundError:
        return
    faults = next((line.partition(":")[2].strip() for line in lines if line.startswith("faults:")), "0")
    if faults != "0":
        text = f"{faults} unexpected errors in the daemon; its log has them, please report them"
        yield fail("faults", text)
    resource = ""
    for line in lines:
        name, _, value = line.partition(": ")
        if name == "data rings gone with their records, unknown how many" and value != "0":
            text = (
                f"{value} did not come back after the daemon's restart; how many records they held is unknown"
            )
            yield note("data rings", text)
        elif name.startswith("  refused to user "):
            times = "once" if value == "1" else f"{value} times"
            text = f"user {name.split()[-1]} was refused {times}; the daemon's log says what and why"
            yield note(resource, text)
        elif not line.startswith(" "):
            resource = name


def _examine_events(
    tree: Tracefs, patterns: tuple[str, ...], events: list[EventName], standing: list[str], *, filtering: bool
) -> Iterator[Finding]:
    for pattern in patterns:
        if not select([pattern], events):
            yield fail(
                pattern,
                "no program that runs has declared it (or the program was started before the daemon "
                "and has not noticed it yet, or uses another UTRACEFS_DIR)"
                + similar_event(pattern, events)
                + (f"; declared: {_some(events)}" if events else ""),
            )
    for line in refused_events(tree, patterns):
        name, _, refusal = line.partition(": ")
        yield fail(name, refusal)
    chosen = select(patterns, events) if patterns else events
    if not events:
        yield note("events", "none; no program has declared one, or none found this daemon")
    elif not patterns:
        yield ok("events", f"{len(events)} declared: {_some(events)}")
    users = users_of(tree)
    off = [event for event in chosen if not users.get(event.name)]
    used = [event for event in chosen if users.get(event.name)]
    if patterns:
        for event in off:
            reason = f"no consumer is attached to it; `utracefs enable {event}` records it"
            yield fail(str(event), reason)
    elif off:
        level = "note" if used else "FAIL"
        yield Finding(
            level,
            "enabled",
            f"no consumer is attached to {_some(off)}; `utracefs enable EVENT` records an event",
        )
    elif used:
        yield ok("enabled", "a consumer is attached to every event")
    if standing:
        yield ok("standing_events", " ".join(standing))
    for event, text in zip(used, tree.read_files(f"{event.directory}/stats" for event in used), strict=True):
        if isinstance(text, bytes):
            asked = any(matches(p, event) for p in patterns)
            yield from _examine_stats(tree, event, text, asked=asked, filtering=filtering)


def _examine_stats(
    tree: Tracefs, event: EventName, text: bytes, *, asked: bool, filtering: bool
) -> Iterator[Finding]:
    stats = event_stats(text)
    emitted, consumers = stats.emitted, stats.consumers
    if stats.rings_gone:
        lost = f"an unknown number of records is lost with {stats.rings_gone} data rings that are gone"
        yield note(str(event), lost)
    for reason, count in stats.refused.items():
        said = f"{count} refused by the program's own client: {reason}; a Python program's warning says where"
        yield fail(str(event), said)
    if not emitted and not stats.refused:
        yield note(str(event), "nothing was emitted while a consumer was attached")
        return
    quiet = not (stats.rings_gone or stats.refused)
    for consumer, counts in consumers.items():
        if counts["lost"]:
            quiet = False
            where = ""
            if stats.lost_in_rings:
                in_rings = min(stats.lost_in_rings, counts["lost"])
                where = f", {in_rings} of them {IN_RINGS}"
            part = share(counts["lost"], counts["recorded"] + counts["lost"])
            said = f"{consumer} lost {counts['lost']} of {emitted}{where}; that is {part}"
            yield fail(str(event), said)
        gone = consumer in stats.detached and not consumer.startswith("ftrace")
        why = ""
        if counts["filtered"] and not gone:  # its records are not missed
            why = _why_filtered(tree, event, consumer, filtering=filtering)
        if why:
            quiet = False
            yield note(str(event), f"{consumer} kept {counts['filtered']} away: {why}")
    if asked and quiet:
        yield ok(str(event), f"{emitted} emitted, all recorded")


def _why_filtered(tree: Tracefs, event: EventName, consumer: str, *, filtering: bool) -> str:
    """Empty for a removed instance: its records are not missed. filtering: a setting of the top instance
    rejects records now."""
    kind, _, name = consumer.partition(":")
    if kind == "stream":
        return "its filter"
    if kind != "ftrace":
        return "its pid or cpu, or the sample period"
    try:
        filter_text = text_of(tree.read_file(Place(name).path(f"{event.directory}/filter"))).strip()
    except FileNotFoundError:
        return ""
    if filter_text != "none" and "parse_error:" not in filter_text:
        return f"its filter is {filter_text!r}"
    settings = "a filter, tracing_on, pid lists or tracing_cpumask"
    return settings if filtering or name else f"{settings} as they were then; nothing does now"


def _examine_what_keeps_away(tree: Tracefs, state: dict[str, Any]) -> Iterator[Finding]:
    if state["tracing_on"]:
        yield ok("tracing_on", "1")
    else:
        yield fail("tracing_on", "0, nothing is recorded; `utracefs write tracing_on 1`")
    if pids := tree.read_file("set_event_pid").decode().split():
        yield note(
            "set_event_pid",
            f"only {len(pids)} threads are recorded ({_some(pids)}); "
            "`utracefs write set_event_pid ''` lifts that",
        )
    if pids := tree.read_file("set_event_notrace_pid").decode().split():
        yield note("set_event_notrace_pid", f"{len(pids)} threads are not recorded ({_some(pids)})")
    mask = tree.read_file("tracing_cpumask").decode().strip()
    if not int(mask.replace(",", ""), 16):
        yield fail("tracing_cpumask", "0, nothing is recorded")
    elif int(mask.replace(",", ""), 16).bit_count() < state["cpus"]:
        yield note("tracing_cpumask", f"{mask}: not all of {state['cpus']} cpus are recorded")


def _examine_buffer(tree: Tracefs, state: dict[str, Any]) -> Iterator[Finding]:
    if names := instance_names(tree):
        yield note("instances", f"{len(names)}, with buffers and switches of their own: {_some(names)}")
    try:
        tree.close_handle(tree.open("trace_pipe", os.O_RDONLY | os.O_NONBLOCK))
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        yield note("trace_pipe", "a reader is open: it takes the records, and `trace` no longer has them")
    if state["read"]:
        yield note("read events", f"{state['read']} records were taken by readers")
    size = f"{state['size_kb']} KiB on each of {state['cpus']} cpus, {state['entries']} records unread"
    yield ok("buffer_size_kb", size)
    buffers = all_buffers(tree)
    for name, found in buffers.items():
        if overrun := found["overrun"]:
            yield note(
                f"{name}: overrun" if name else "overrun",
                f"{overrun} records, {share(overrun, ever(found))}, were overwritten by newer ones before "
                "they were read; a larger buffer_size_kb keeps more",
            )
    lost, of = all_lost(read_stats(tree, available_events(tree)).values(), buffers)
    if any(lost.values()):
        yield note("losses", lost_text(lost, of, kinds=OF_ALL))
    if state["dropped"]:
        yield fail(
            "dropped events",
            f"{state['dropped']} records found the buffer full and options/overwrite off; "
            "a larger buffer_size_kb, or a reader, helps",
        )
    if state["late"]:
        yield note(
            "late events",
            f"{state['late']} records came after later ones of their cpu and have the time of those; "
            "per_cpu/cpuN/stats says by how much",
        )


def _some(things: Sequence[object]) -> str:
    text = " ".join(str(thing) for thing in things[:MANY])
    return text if len(things) <= MANY else f"{text} and {len(things) - MANY} more"
