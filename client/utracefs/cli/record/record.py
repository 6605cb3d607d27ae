"""`utracefs record`: record the events of a command, or of all programs until Ctrl-C, into a trace.dat, or by
the ending of the file into another format.

    a daemon answers           it is used
    none, and a COMMAND        a daemon of its own, while the command runs (cli/run/choose_daemon.py)
    none, and no COMMAND       an error: no program would find our daemon

It makes a private instance (cli/run/own_instance.py), so that recorders, streams and users who clear the
trace do not disturb each other. In order: settings, events; run the command, read pages
(cli/run/recorder.py); then stop recording, drain, write the file. Each operation on the tree first takes in
all that applications sent before it, so all records of the command before its end are in the file.

`--flight` keeps the records in the ring buffer and writes them when something happens (flight.py),
`--switch-output` writes successive files (rotation.py).

Another format is converted at the end from a trace.dat beside it, which is then removed (target.py).
"""

import contextlib
from collections.abc import Sequence
from functools import partial

import attrs
import click

from utracefs.cli import COMMAND_SETTINGS, Failure, Parsed
from utracefs.cli.common import (
    Kilobytes,
    check_place,
    directory_option,
    duration_option,
    exists,
    subbuf_size_option,
    tell,
)
from utracefs.cli.completion import complete_clock, complete_command
from utracefs.cli.event_options import Wanted, WantedCommand, WantedEvents, wanted_options
from utracefs.cli.instance_option import Place, instance_option
from utracefs.cli.losses import AS_FAR_AS_REPORTED, larger_buffer, lost_text, no_room, refused_text
from utracefs.cli.record.flight import flight_settings, record_flight
from utracefs.cli.record.job import Job
from utracefs.cli.record.options import LongOptions, long_options
from utracefs.cli.record.requests import is_snapshot
from utracefs.cli.record.rotation import Rotation
from utracefs.cli.record.target import Target
from utracefs.cli.run.choose_daemon import running_or_own
from utracefs.cli.run.own_instance import own_instance
from utracefs.cli.run.recorder import About, Recorder, Summary
from utracefs.cli.run.run_loop import signals_blocked
from utracefs.cli.run.traced_command import Launch, launch_options, launched
from utracefs.cli.run.watch import Watch, come_back
from utracefs.cli.tables import counted, sized
from utracefs.recordings.partial_files import dumped_name
from utracefs.tree.event_names import ALL_USER_EVENTS, select, similar_event
from utracefs.tree.tracefs import Tracefs


def _pids(text: str) -> str:
    """Check a list of processes; returns it for `set_event_pid`. ValueError."""
    pids = text.split(",")
    if not all(pid.isascii() and pid.isdecimal() and int(pid) for pid in pids):
        raise ValueError(f"{text!r} is not a process such as 4711, or a list of them: 4711,4712")
    return " ".join(pids)


@click.command(cls=WantedCommand, context_settings={**COMMAND_SETTINGS, "allow_interspersed_args": False})
@directory_option
@wanted_options("Events to record: SYSTEM:NAME, NAME, or globs; those registered later, too. [default: all]")
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    default="trace.dat",
    show_default=True,
    type=click.Path(readable=False),
    help="Where to write; the ending says the format: .dat, .data (perf), .jsonl, .csv, .json (Chrome),"
    " .pftrace, .parquet, .ctf or / (CTF).",
)
@click.option(
    "-p",
    "-P",
    "--pid",
    "pids",
    metavar="PID,...",
    type=Parsed("pids", _pids),
    multiple=True,
    help="Only these processes, with all threads and children, or threads; without COMMAND until the last"
    " one ends. [default: all]",
)
@instance_option("Name of the instance to make for this; with --keep: the one to take.")
@click.option(
    "-b",
    "--buffer-size-kb",
    metavar="KB",
    type=Kilobytes(min=1),
    help="Ring buffer of each cpu, in KiB or with a unit: 100M. [default: 1408]",
)
@subbuf_size_option
@click.option(
    "-k",
    "--clock",
    metavar="CLOCK",
    shell_complete=complete_clock,
    help="Trace clock: mono, boot, counter, ... [default: local]",
)
@click.option(
    "--overwrite/--no-overwrite",
    default=None,
    help="A full buffer drops the oldest, or the newest, records. [default: the oldest]",
)
@click.option(
    "--keep",
    is_flag=True,
    help="Record the contents and the enabled events of the existing top instance (-B: of that one), instead"
    " of a private instance.",
)
@click.option(
    "--snapshot",
    is_flag=True,
    help="Keep the latest records in the ring buffer, and at the end write the last snapshot of a `snapshot`"
    " trigger, or without such a trigger the buffer. SIGUSR2: write it now, to FILE.YYYYMMDDhhmmssNN,"
    " and continue.",
)
@duration_option("How long to record: 10 (seconds), 5m, 2h, ...")
@click.option("--wall-clock", is_flag=True, help="Let readers of the file print wall-clock times.")
@click.option(
    "--embedded",
    is_flag=True,
    help="Start a private daemon even if one is running: for the records of COMMAND alone.",
)
@long_options
@launch_options
@click.argument("command", nargs=-1, type=click.UNPROCESSED, shell_complete=complete_command)
def record(
    directory: str | None,
    wanted: tuple[Wanted, ...],
    output: str,
    pids: tuple[str, ...],
    place: Place,
    buffer_size_kb: int | None,
    subbuf_size_kb: int | None,
    clock: str | None,
    overwrite: bool | None,
    keep: bool,
    snapshot: bool,
    duration_s: float | None,
    wall_clock: bool,
    embedded: bool,
    launch: Launch,
    long: LongOptions,
    command: tuple[str, ...],
) -> int:
    """Record events of COMMAND, or of all programs until Ctrl-C, into a trace.dat or, by the ending of FILE,
    another format.

    Uses the running daemon, and so records all its programs beside COMMAND; else, or with --embedded, starts
    one, which only COMMAND finds (by UTRACEFS_DIR). The exit status is that of COMMAND; 128+N when signal N
    ended it, 127 when it was not found; 1 if COMMAND had 0 and no EVENT of a -e appeared, or a filter or a
    trigger was invalid for an event that appeared.

    utracefs record -e 'http_*' --filter 'status >= 500' -e shop_order -- python app.py
    """
    # Options that contradict each other, before a daemon is started or a file is made.
    if embedded and (directory or not command):
        raise click.UsageError("--embedded goes with a COMMAND and without --dir")
    if keep and (wanted or pids or buffer_size_kb or subbuf_size_kb or clock or overwrite is not None):
        raise click.UsageError(
            "--keep uses the instance unchanged: without -e, -p, -b, --subbuf-size, -k and --overwrite"
        )
    target = Target(output)
    _check_long(
        long, target, keep=keep, snapshot=snapshot, overwrite=overwrite, buffer_size_kb=buffer_size_kb
    )
    settings = {} if keep else _settings(target, pids, clock, buffer_size_kb, subbuf_size_kb, overwrite)
    with contextlib.ExitStack() as stack:
        # Signals wait until all that is made here is sure to be removed.
        blocked = stack.enter_context(signals_blocked(alone=not command))
        tree, own = stack.enter_context(
            running_or_own(directory, has_command=bool(command), embedded=embedded)
        )
        returns = not (own or keep)
        surroundings = stack.enter_context(launched(launch, tree, command))
        # The instance is set up before COMMAND starts and before any event is enabled there.
        if keep:
            check_place(tree, place)
        else:
            kind = "flight" if long.flight else "record"
            place = stack.enter_context(own_instance(tree, kind, place.name, returns=returns))
        if long.flight:
            settings = {**flight_settings(tree, long.flight), **settings}
        for file, value in settings.items():
            _set(tree, place, file, value)
        numbers = " ".join(pids).split()
        absent = [pid for pid in numbers if not exists(pid)]
        job = Job(
            tree=tree,
            place=place,
            target=target,
            wanted=wanted,
            long=long,
            wall_clock=wall_clock,
            command=command,
            duration_s=duration_s,
            blocked=blocked,
            surroundings=surroundings,
            returns=returns,
            ends_with_pids=not command and len(absent) < len(numbers),
        )
        for pid in absent:
            tell(f"-p: there is no process {pid} here")
        if long.flight:
            return record_flight(job)
        return _record(job, keep=keep, snapshot=snapshot, own=own)


def _record(job: Job, *, keep: bool, snapshot: bool, own: bool) -> int:
    """All but a flight recorder."""
    tree, place, wanted, target = job.tree, job.place, job.wanted, job.target
    with contextlib.ExitStack() as stack:
        recorder = stack.enter_context(
            Recorder(
                tree,
                target.path,
                place,
                snapshot=snapshot,
                compression=job.long.compression,
                lossless_us=job.long.lossless_us,
            )
        )
        target.check_clock(recorder.texts.clock)
        about = job.about(recorder.texts)
        asked = WantedEvents(tree, place, () if keep else wanted or (Wanted(ALL_USER_EVENTS),))
        # Only now, with the recorder attached: the first record of each event is in the file.
        if not keep:
            asked.begin()
        job.tell_that_it_runs()
        watch = Watch(recorder, asked, partial(come_back, tree, place) if job.returns else None)
        # A trigger takes the snapshot when it wants; without one it is taken at the end.
        takes_snapshot = (
            snapshot and not keep and not any(is_snapshot(text) for one in wanted for text in one.triggers)
        )
        rotation = None
        if job.long.switch_output:
            rotation = stack.enter_context(
                Rotation(recorder, target.output, job.long.switch_output, job.long.most, about)
            )
            watch.after_step.append(rotation.step)
        if job.ends_with_pids:
            watch.after_step.append(job.until_pids_end)

        def dump() -> None:
            with watch.until_the_daemon_goes():
                _write_snapshot(job, about, takes_one=takes_snapshot)

        at_signal = rotation.ask if rotation else dump if snapshot else None
        status = watch.run(lambda step: job.run(step, at_signal))
        # Switched off before the last read, so that this has an end beside busy programs.
        with watch.until_the_daemon_goes():
            if not keep:
                recorder.catch_up()
                tree.write_file(place.path("tracing_on"), b"0\n")
            if takes_snapshot:
                recorder.read_texts()  # the numbers of this ring
                tree.write_file(place.path("snapshot"), b"1\n")
            recorder.drain()
            asked.check()
            asked.check_registrations()
        # A rotation tells the totals of its files itself.
        if rotation is not None:
            rotation.finish()
            status = status or asked.finish()
            _fail_if_incomplete(watch, f"{target.output}.*", rotation.failure(status))
            return status
        if watch.error is None:
            status = _tell_what_is_missing(job, recorder, status)
        summary = recorder.finish(about)
        larger = ""
        if watch.error is None and summary.dropped + summary.overwritten:
            larger = larger_buffer(tree, place, summary.size / max(1, summary.records))
        if (
            not (snapshot or job.long.lossless_us)
            and summary.in_rings + summary.dropped + summary.overwritten
        ):
            larger += "; --lossless lets programs wait instead"
    # The file is complete: now tell what came, and what is missing in it.
    status = status or asked.finish()
    _tell_what_came(job, watch, summary, larger, own=own, snapshot=snapshot)
    full = None
    if error := recorder.writer.error:
        full = no_room(target.output, error, summary.no_room, "records", status or 1)
    _fail_if_incomplete(watch, target.output, full, snapshot=snapshot)
    return status


def _check_long(
    long: LongOptions,
    target: Target,
    *,
    keep: bool,
    snapshot: bool,
    overwrite: bool | None,
    buffer_size_kb: int | None,
) -> None:
    """UsageError for options that exclude each other."""
    if long.flight and (keep or snapshot or overwrite is False):
        raise click.UsageError(
            "--flight has a ring buffer of its own: without --keep, --snapshot, --no-overwrite"
        )
    if long.lossless_us and (long.flight or snapshot):
        raise click.UsageError("--flight and --snapshot overwrite the oldest records: without --lossless")
    if long.flight and long.flight.size and buffer_size_kb:
        raise click.UsageError("--flight SIZE says how large the ring buffer is: without -b")
    if long.switch_output and snapshot:
        raise click.UsageError("--snapshot writes at a trigger, --switch-output always: take one")
    if target.is_converted and (long.switch_output or long.compression):
        option = "--switch-output" if long.switch_output else "--compress"
        raise click.UsageError(f"{option} writes trace.dat files; `utracefs export` converts them")


def _settings(
    target: Target,
    pids: Sequence[str],
    clock: str | None,
    buffer_size_kb: int | None,
    subbuf_size_kb: int | None,
    overwrite: bool | None,
) -> dict[str, str]:
    """Values of the private instance's files."""
    settings = {}
    if subbuf_size_kb is not None:
        settings["buffer_subbuf_size_kb"] = str(subbuf_size_kb)
    if clock is not None:
        settings["trace_clock"] = clock
    if buffer_size_kb is not None:
        settings["buffer_size_kb"] = str(buffer_size_kb)
    if overwrite is not None:
        settings["options/overwrite"] = str(int(overwrite))
    if pids:
        settings["options/event-fork"] = "1"  # all threads of a process, and its children
        settings["set_event_pid"] = " ".join(pids)
    settings["options/copy_trace_marker"] = "1"
    if target.is_converted:  # a trace.dat has no processes
        settings["options/record-tgid"] = "1"
    return settings


def _write_snapshot(job: Job, about: About, *, takes_one: bool) -> None:
    """Write the present snapshot to a file of its own. takes_one: take it first, as no trigger does."""
    output = job.target.output
    target = Target(dumped_name(output.rstrip("/")), like=output)
    compression = job.long.compression
    with Recorder(job.tree, target.path, job.place, snapshot=True, compression=compression) as recorder:
        if takes_one:
            job.tree.write_file(job.place.path("snapshot"), b"1\n")
        recorder.drain()
        found = recorder.finish(about)
    size = target.finish(found.size, recorder.texts.tgids)
    lost = f", {lost_text(found.losses)}" if found.lost else ""
    tell(f"{target.output}: {counted(found.records, 'record')}, {sized(size)}{lost}")


def _fail_if_incomplete(
    watch: Watch[Recorder], output: str, full: Failure | None, *, snapshot: bool = False
) -> None:
    """Failure: the disk was full, or the daemon ended."""
    if full is not None:
        raise full
    if watch.error is not None:
        rest = "the records were in its ring buffer" if snapshot else f"{output} has the records until then"
        raise Failure(str(watch.error.filename), f"{watch.error.strerror}; {rest}")


def _tell_what_is_missing(job: Job, recorder: Recorder, status: int) -> int:
    """The exit status; the command's takes precedence. Failure if none of the requested events appeared: perf
    refuses those, too, but in advance."""
    asked = [one.pattern for one in job.wanted if one.pattern != ALL_USER_EVENTS]
    missing = [pattern for pattern in asked if not select([pattern], recorder.texts.events)]
    status = status or int(bool(missing))
    others = recorder.texts.there.difference(recorder.texts.events)
    if missing and len(missing) == len(job.wanted):
        hint = job.surroundings.hint or "without -e all are recorded"
        meant = "".join(similar_event(pattern, others) for pattern in missing)
        reason = f"no such event came{meant}; {job.target.output} is not written; {hint}"
        raise Failure(" ".join(missing), reason, status)
    for pattern in missing:
        tell(f"{pattern}: no such event came{similar_event(pattern, others)}")
    return status


def _set(tree: Tracefs, place: Place, file: str, value: str) -> None:
    """Errors name the file alone: the user does not know the private instance."""
    error = tree.refusal(place.path(file), value.encode() + b"\n")
    if error is not None:
        raise OSError(error.errno, error.strerror, file)


def _tell_what_came(
    job: Job, watch: Watch[Recorder], summary: Summary, larger: str, *, own: bool, snapshot: bool
) -> None:
    """Convert the recording, and print its summary. own: of a daemon that has ended when this is read, so
    `doctor` would not find it. larger: from `larger_buffer`. Failure: it is not converted, and the trace.dat
    stays."""
    output = job.target.path
    try:
        summary = attrs.evolve(summary, size=job.target.finish(summary.size, watch.recorder.texts.tgids))
        output = job.target.output
    finally:
        tell(f"{output}: {_what_came(job, watch, summary, larger, own=own, snapshot=snapshot)}")


def _what_came(
    job: Job, watch: Watch[Recorder], summary: Summary, larger: str, *, own: bool, snapshot: bool
) -> str:
    wanted, hint = job.wanted, job.surroundings.hint
    whole, came_back = watch.error is None, watch.recorder.came_back
    records = counted(summary.records, "record")
    if snapshot:
        # The next daemon counts the records of events from 0 again.
        records += " in the snapshot" if came_back else f" of {summary.recorded} in the snapshot"
    if any(one.filter for one in wanted) or (summary.filtered and not summary.records):  # also by -p
        records += f", {summary.filtered} filtered out"
    of = (summary.recorded - summary.no_room if snapshot else summary.records) + summary.lost
    of = of if summary.lost > summary.no_room else 0
    text = f"{records}, {sized(summary.size)}, {lost_text(summary.losses, of)}{larger}"
    if came_back or not whole:
        text += AS_FAR_AS_REPORTED
    text += refused_text(summary.refused)
    if whole and snapshot and summary.recorded and not summary.records:
        text += "; no trigger took a snapshot"
    elif whole and not (
        summary.records or summary.lost or summary.filtered or summary.recorded or summary.refused
    ):
        text += f"; no record{' of ' if wanted else ''}{' '.join(one.pattern for one in wanted)} came"
        text += " from the command" if own else "" if hint else ", `utracefs doctor` may know why"
        text += f"; {hint}" if hint else ""
    return text
