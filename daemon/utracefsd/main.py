"""The process of the daemon: the command `utracefsd`, its log, signals, systemd, and the parent's end.

utracefsd ── run_process ── serve             the daemon itself (server/serve.py)
              ├── _until_signal              SIGTERM, SIGINT, SIGHUP end it; SIGTERM may keep the state
              ├── _until_parent_is_gone      with --exit-with-parent
              └── _keep_alive                systemd's watchdog, if it wants one
"""

import contextlib
import ctypes
import errno
import functools
import os
import resource
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import click
import trio

from utracefs_protocol.errors import TraceError
from utracefs_protocol.limits import USER_EVENTS_MAX
from utracefsd.consumers.plugins.plugins import Installed
from utracefsd.daemon import Daemon, DaemonOptions
from utracefsd.daemon_log import daemon_log
from utracefsd.machine import collector
from utracefsd.server import sd_notify
from utracefsd.server.background import into_background, leave_terminal, stop
from utracefsd.server.fd_store import FdStore, take_stored
from utracefsd.server.log_formats import set_up_log
from utracefsd.server.serve import Serving, serve

SWITCH_S = 0.0005
"""How long a plug-in's thread may hold the interpreter while the daemon waits; Python's default is 5 ms."""

_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def _version() -> str:
    try:
        return version("utracefs")
    except PackageNotFoundError:  # run from a source tree
        return "0"


def _raise_descriptor_limit() -> None:
    """Allow as many connections as possible; the soft limit is low only for select(2), which is not used
    here."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 1 << 16 if hard == resource.RLIM_INFINITY else min(hard, 1 << 16)
    with contextlib.suppress(ValueError, OSError):
        if soft != resource.RLIM_INFINITY and soft < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


async def _until_signal(signals: AsyncIterator[int], end: Callable[[int], None]) -> None:
    async for number in signals:
        daemon_log("ending", signal=signal.Signals(number).name)
        end(number)


async def _until_parent_is_gone(end: Callable[[], None]) -> None:
    """Without its parent an embedded daemon would never end.

    A pidfd reports the end of the process. PR_SET_PDEATHSIG reports the end of the thread that started us
    (prctl(2)), so it is only the fallback where pidfd_open(2) is forbidden.
    """
    try:
        pidfd = os.pidfd_open(os.getppid())
    except ProcessLookupError:
        end()
        return
    except OSError:
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        return
    try:
        await trio.lowlevel.wait_readable(pidfd)
        daemon_log("parent-gone")
        end()
    finally:
        os.close(pidfd)


async def _keep_alive(notifier: sd_notify.Notifier, interval_s: float) -> None:
    """Send the keep-alive messages from the loop that does the work: they prove that it still runs."""
    while True:
        notifier.watchdog()
        await trio.sleep(interval_s)


async def run_process(
    start: Callable[..., Awaitable[None]],
    *,
    ready_fd: int | None,
    background: bool,
    exit_with_parent: bool,
    keep_state: bool,
    notifier: sd_notify.Notifier,
) -> None:
    """`start` (`serve` with its arguments) as a whole process: until a signal comes, or the parent's end.

    SIGTERM stops a service, perhaps to start it again: the state is kept if a program is connected, or may
    come back. Ctrl-C, a terminal that hangs up and the end of the parent remove it.
    """
    running: list[Daemon] = []

    def end(number: int | None = None) -> None:
        stopped = number == signal.SIGTERM and not exit_with_parent
        for daemon in running:
            daemon.remove_state = not (stopped and (keep_state or daemon.is_missed))
        nursery.cancel_scope.cancel()

    # The receiver is there before the sockets: a signal during the start leaves none behind.
    with trio.open_signal_receiver(*_ENDING) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_until_signal, signals, end)
            if exit_with_parent:
                nursery.start_soon(_until_parent_is_gone, end)
            try:
                serving: Serving = await nursery.start(start)
                running.append(serving.daemon)
                notifier.ready(f"sockets in {serving.runtime.directory}")
                if notifier.watchdog_interval_s is not None:
                    nursery.start_soon(_keep_alive, notifier, notifier.watchdog_interval_s)
                if ready_fd is not None:
                    if background:
                        leave_terminal()
                    _tell_ready(ready_fd, end if exit_with_parent else None)
                await trio.sleep_forever()
            finally:
                notifier.stopping()
        # All is done. A further signal would only kill the process while it exits, and change its status.
        signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)


def _tell_ready(fd: int, end: Callable[[], None] | None) -> None:
    """Write one line for the process that started us; call `end` if that process has gone."""
    try:
        os.write(fd, b"READY\n")
        os.close(fd)
    except OSError as error:
        daemon_log("ready-fd-failed", fd=fd, reason=error.strerror)
        if end is not None:
            end()


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.option(
    "--dir", "directory", metavar="DIR", help="Directory of the sockets. [default: $UTRACEFS_DIR, else yours]"
)
@click.option(
    "--status-pages",
    metavar="PAGES",
    type=click.IntRange(1, 16),
    default=1,
    help="Size of the status file; a byte for each event, less one.",
)
@click.option(
    "--buffer-size-kb",
    metavar="KB",
    type=click.IntRange(min=1),
    help="Size of the top instance's ring buffer, for each cpu. [default: 1408]",
)
@click.option(
    "--user-events-max",
    metavar="N",
    type=click.IntRange(min=1),
    default=USER_EVENTS_MAX,
    help="Events at once, as sysctl kernel.user_events_max; the status pages are the other bound.",
)
@click.option(
    "--group",
    metavar="GROUP",
    help="Group that may be traced, a name or a number. [default: tracing, where it exists]",
)
@click.option(
    "--tracefs-group",
    metavar="GROUP",
    help="Group that may administer: read every record, change every setting. [default: none]",
)
@click.option(
    "--plugin",
    "plugins",
    multiple=True,
    metavar="NAME",
    help="Load this consumer only; may be repeated. [default: all]",
)
@click.option(
    "--plugin-option",
    "plugin_options",
    multiple=True,
    metavar="NAME.KEY=VALUE",
    help="An option of a consumer, for its `start`; may be repeated.",
)
@click.option(
    "--ready-fd",
    type=click.IntRange(min=0),
    metavar="FD",
    help='Write "READY" to FD once the sockets listen.',
)
@click.option(
    "--background",
    is_flag=True,
    help="Return once the sockets listen. The daemon has no terminal; it keeps stderr if that is a file.",
)
@click.option(
    "--stop", "stops", is_flag=True, help="End the daemon of DIR, as SIGTERM does, and wait for its end."
)
@click.option(
    "--exit-with-parent",
    is_flag=True,
    help="End when the process that started this one is gone; an empty DIR goes, too.",
)
@click.option(
    "--keep-state",
    is_flag=True,
    help="On SIGTERM keep events, settings and records for the next daemon, "
    "also when no program is connected.",
)
@click.option("--discard-state", is_flag=True, help="Do not take over the state of an earlier daemon.")
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    help="What is written to stderr.",
)
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    help="As text, or a JSON object in each line.",
)
@click.version_option(_version(), prog_name="utracefsd")
def main(
    directory: str | None,
    plugins: tuple[str, ...],
    plugin_options: tuple[str, ...],
    ready_fd: int | None,
    background: bool,
    stops: bool,
    exit_with_parent: bool,
    keep_state: bool,
    log_level: str,
    log_format: str,
    **others: Any,  # of DaemonOptions
) -> None:
    """Bring user_events and tracefs to the processes of this machine, without the kernel's help.

    Applications connect to DIR/user_events_data, tools to DIR/tracefs. SIGTERM and Ctrl-C end it cleanly.

    Killed, or ended by SIGTERM while programs are connected, it leaves events, settings and records in
    /dev/shm; the next daemon with the same DIR takes them over. Ctrl-C removes them, as does any end with
    --exit-with-parent.
    """
    installed = {point.name for point in Installed()()}
    if missing := sorted(set(plugins) - installed):
        raise click.UsageError(f"--plugin {missing[0]}: no consumer of that name is installed")
    options = _plugin_options(plugin_options, set(plugins) or installed)
    if ready_fd is not None:
        try:
            os.fstat(ready_fd)
        except OSError as error:
            raise click.UsageError(f"--ready-fd {ready_fd}: {error.strerror}") from None
    # Mistakes in the options are reported before a process is left behind, or one is stopped.
    if stops:
        sys.exit(stop(directory))
    if background:
        if exit_with_parent or ready_fd is not None:
            raise click.UsageError("--background goes with neither --exit-with-parent nor --ready-fd")
        ready_fd = into_background()
    # In the process that stays, if there are two.
    set_up_log(log_level, log_format)
    _raise_descriptor_limit()
    notifier = sd_notify.Notifier.from_environ()
    listen_fds = sd_notify.take_listen_fds()
    store = FdStore.from_environ(notifier, take_stored(listen_fds)[1])

    start = functools.partial(
        serve,
        directory,
        DaemonOptions(plugins=plugins or None, plugin_options=options, **others),
        listen_fds=listen_fds,
        store=store,
        ends_with_parent=exit_with_parent,
    )
    process = functools.partial(
        run_process,
        start,
        ready_fd=ready_fd,
        background=background,
        exit_with_parent=exit_with_parent,
        keep_state=keep_state,
        notifier=notifier,
    )
    try:
        status = _run(process)
    finally:
        if exit_with_parent and directory is not None:
            # The parent made it, and may have been killed.
            with contextlib.suppress(OSError):
                os.rmdir(directory)
    sys.exit(status)


def _run(process: Callable[[], Awaitable[None]]) -> int:
    """The process's exit status; its error is logged."""
    sys.setswitchinterval(SWITCH_S)
    collector.take_over()
    try:
        trio.run(process)
    except* (TraceError, OSError) as failures:
        failure = _first(failures)
        text = failure.text if isinstance(failure, TraceError) else _reason(failure)
        if isinstance(failure, (TraceError, OSError)) and failure.errno == errno.ENOSPC:
            text += "; free space there, or mount a larger one (docker run --shm-size)"
        daemon_log("failed", reason=text)
        status = 1
    else:
        status = 0
    return status  # (Python 3.11.2 makes an exception group of a SystemExit that is raised in `except*`)


def _plugin_options(texts: Sequence[str], names: Collection[str]) -> dict[str, dict[str, str]]:
    """`NAME.KEY=VALUE` each, by name."""
    options: dict[str, dict[str, str]] = {}
    for text in texts:
        left, equals, value = text.partition("=")
        name, dot, key = left.rpartition(".")
        if not (equals and dot and name and key):
            raise click.UsageError(f"--plugin-option {text}: write NAME.KEY=VALUE")
        if name not in names:
            raise click.UsageError(f"--plugin-option {text}: no consumer {name} is installed and wanted")
        options.setdefault(name, {})[key] = value
    return options


def _reason(error: BaseException) -> str:
    """The text of an OSError, without its number."""
    about, text = getattr(error, "filename", None), getattr(error, "strerror", None)
    return ": ".join(str(part) for part in (about, text) if part) or str(error)


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first exception inside groups of groups."""
    found: BaseException = group
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return found
