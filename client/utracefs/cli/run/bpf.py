"""`utracefs bpftrace` and `utracefs bpf`: unchanged tools of eBPF, on the events of user_events.

    tool ── bpf(2), perf_event_open(2), files of tracefs ──▶ libutracefs-bpf.so, by LD_PRELOAD
                                                               │ programs, maps
    daemon ── records, over a stream ───────────────────────▶──┘

The library reads UTRACEFS_DIR. The command that bpftrace -c starts is no such tool: it gets the LD_PRELOAD of
a recorded command (traced_command.py), which the library puts in place of its own.
"""

import os
import shutil
import signal
from collections.abc import Mapping, Sequence
from typing import NoReturn

import click

from utracefs.cli import COMMAND_SETTINGS, Failure, c_client
from utracefs.cli.common import connect, directory_option
from utracefs.cli.completion import complete_command
from utracefs.cli.run.choose_daemon import running_or_own
from utracefs.cli.run.run_loop import NOT_EXECUTABLE, NOT_FOUND, Surroundings, run_steps, signals_blocked
from utracefs.cli.run.traced_command import environment, fits, obstacle
from utracefs_protocol.text import bytes_of

_CHILD_PRELOAD = "UTRACEFS_BPF_CHILD_PRELOAD"

_WITH_VALUE = "BIefop"
"""bpftrace's options of one letter that take a value, besides -c, and -d (in some versions; never apart)."""


@click.command(
    context_settings={**COMMAND_SETTINGS, "allow_interspersed_args": False, "ignore_unknown_options": True}
)
@directory_option
@click.option(
    "--from",
    "recordings",
    metavar="FILE",
    multiple=True,
    type=click.Path(),
    help="Take the records of a recording, or of several, instead of a daemon's.",
)
@click.option(
    "--reg", "declarations", metavar="DECLARATION", multiple=True, help="Declare an event before, as `reg`."
)
@click.argument("args", nargs=-1, required=True, type=click.Path())
def bpftrace(
    directory: str | None, recordings: tuple[str, ...], declarations: tuple[str, ...], args: tuple[str, ...]
) -> int:
    """Run bpftrace on user_events, without root and without the kernel's eBPF. ARGS are bpftrace's.

    bpftrace knows the events that are registered when it starts: for -c CMD declare those of CMD with --reg.
    Uses the running daemon; for -c CMD else starts one. Options of this command go before bpftrace's. The
    exit status is bpftrace's.

    \b
    utracefs bpftrace -l
    utracefs bpftrace -e 'tracepoint:user_events:http_request { @[args->status] = count(); }'
    utracefs bpftrace --reg 'done u32 usec' -c 'python app.py' latency.bt
    utracefs bpftrace --from trace.dat latency.bt
    """
    if late := [word for word in args if word.partition("=")[0] in ("--dir", "--from", "--reg")]:
        raise click.UsageError(f"{late[0]} goes before bpftrace's own options")
    program = shutil.which("bpftrace")
    if program is None:
        raise Failure(
            "bpftrace", "is not installed; the package of most distributions is bpftrace", NOT_FOUND
        )
    command = [program, *args]
    if not recordings:
        with running_or_own(directory, has_command=_has_command(args)) as (tree, is_own):
            for declaration in declarations:
                tree.write_file("dynamic_events", b"u:%s\n" % bytes_of(declaration), truncate=False)
            env = _environment(tree.directory, command, environment("").get("LD_PRELOAD", ""))
            if is_own:
                with signals_blocked() as blocked:
                    return run_steps(command, lambda: None, blocked=blocked, surroundings=Surroundings(env))
        _become(command, env)
    if declarations:
        raise click.UsageError("--from goes without --reg")
    if directory != click.get_current_context().find_root().params.get("directory"):
        raise click.UsageError("--from goes without --dir")
    import utracefs
    from utracefs.streaming.replay import Replay

    with (
        signals_blocked() as blocked,
        utracefs.open(recordings, raw_eventheader=True) as recording,
        Replay(recording) as replay,
    ):
        env = {**_environment(replay.directory, command, ""), "UTRACEFS_BPF_RECORDING": "1"}
        status = run_steps(command, lambda: None, blocked=blocked, surroundings=Surroundings(env))
    for note in replay.notes:
        click.echo(f"utracefs: {recording.path}: {note}", err=True)
    if replay.error is not None:
        raise replay.error
    return status


def _has_command(args: Sequence[str]) -> bool:
    """Whether bpftrace would find -c in its arguments, as getopt_long(3) reads them."""
    words = iter(args)
    for word in words:
        if word == "--":
            break
        if not word.startswith("-") or word.startswith("--"):
            continue
        for at, letter in enumerate(word[1:], 2):
            if letter == "c":
                return True
            if letter in _WITH_VALUE and at == len(word):
                next(words, None)
            if letter in _WITH_VALUE + "d":
                break
    return False


@click.command(context_settings={**COMMAND_SETTINGS, "allow_interspersed_args": False})
@directory_option
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, shell_complete=complete_command)
def bpf(directory: str | None, command: tuple[str, ...]) -> None:
    """Run COMMAND, a program that uses libbpf, on user_events, without root and without the kernel's eBPF.

    The exit status is that of COMMAND; 127 when it was not found.

    utracefs bpf -- ./latency
    """
    with connect(directory) as tree:
        env = _environment(tree.directory, command)
    _become(command, env)


def _environment(directory: str, command: Sequence[str], child_preload: str | None = None) -> dict[str, str]:
    """child_preload: LD_PRELOAD of what the tool starts; None: its own."""
    library = c_client.bpf_library()
    if library is None:
        raise Failure(c_client.PREFIX, "the C client was not built; install utracefs where make and gcc are")
    if not fits(library):
        raise Failure(library, "LD_PRELOAD cannot name it, for a blank or colon in its path")
    if found := obstacle(command[0]):
        raise Failure(command[0], f"{found.text.partition(';')[0]}, so that LD_PRELOAD does not reach it")
    env = environment(directory, preload=False)
    if child_preload is not None:
        env[_CHILD_PRELOAD] = child_preload
    env["LD_PRELOAD"] = ":".join(filter(None, [library, env.get("LD_PRELOAD")]))
    return env


def _become(command: Sequence[str], env: Mapping[str, str]) -> NoReturn:
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # by Python
        signal.signal(ignored, signal.SIG_DFL)
    try:
        os.execvpe(command[0], [*command], env)
    except FileNotFoundError:
        raise Failure(command[0], "command not found", NOT_FOUND) from None
    except OSError as error:
        raise Failure(command[0], error.strerror or str(error), NOT_EXECUTABLE) from None
