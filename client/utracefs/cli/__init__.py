"""`utracefs`: the command line.

    main ─▶ group ─▶ a module, imported when its command is called ─▶ Tracefs ─▶ daemon

A command that fails raises: OSError from the tree, TraceError from a file, Failure with a text of its own.
The error is printed as one line `utracefs: PATH-OR-EVENT: reason` on stderr, with status 1; wrong usage is a
line `utracefs: COMMAND: reason` and status 2. An error at a place in a text shows the text with a caret.
Tracebacks are printed only if UTRACEFS_DEBUG is set. A command returns its exit status, None is 0.

This module has the name and short help of every command, so that `utracefs --help` imports none of them.
"""

import contextlib
import errno
import importlib
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

import click

import utracefs
from utracefs.cli.terminal import guard
from utracefs_protocol.errors import TraceError
from utracefs_protocol.extras import how_to_install
from utracefs_protocol.places import DELETED
from utracefs_protocol.terminal import drop_unwritten

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    ParamType = click.ParamType[Any]
else:
    ParamType = click.ParamType  # generic only since click 8.4

__all__ = ["COMMAND_SETTINGS", "F", "Failure", "Group", "LazyGroup", "Parsed", "cli", "main"]

F = TypeVar("F", bound=Callable[..., Any])
"""A command: its decorators return it with its type."""

COMMAND_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


class Failure(Exception):
    """The operation failed: prints `utracefs: ABOUT: REASON`.

    detail: further lines, which show the place in a text.
    """

    def __init__(self, about: str, reason: str, status: int = 1, detail: str = "") -> None:
        super().__init__(about, reason)
        self.about = about
        self.reason = reason
        self.status = status
        self.detail = detail


def error_text(error: Failure | OSError) -> str:
    """`ABOUT: REASON`, for an error that does not end the command."""
    if isinstance(error, Failure):
        return f"{error.about}: {error.reason}"
    return f"{error.filename}: {error.strerror or error}"


class Parsed(ParamType):
    """The type of an option or argument whose value is `parse` of the text. ValueError of that: wrong usage,
    with its text. complete: as click's `shell_complete`."""

    def __init__(
        self,
        name: str,
        parse: Callable[[str], object],
        complete: "Callable[[click.Context, click.Parameter, str], list[CompletionItem]] | None" = None,
    ) -> None:
        self.name = name
        self._parse = parse
        if complete is not None:
            self.shell_complete = complete  # type: ignore[assignment, method-assign]

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> object:
        try:
            return self._parse(value) if isinstance(value, str) else value
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Group(click.Group):
    """A group that suggests the command that a wrong name resembles, with every version of click.

    elsewhere: commands that trace-cmd, perf or others have, and what to type here, with backticks.
    """

    def __init__(self, *args: Any, elsewhere: Mapping[str, str] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._elsewhere = elsewhere or {}

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if not ctx.resilient_parsing and self.get_command(ctx, args[0]) is None:
            from utracefs.tree.event_names import did_you_mean

            if args[0] in self._elsewhere:
                hint = f"; that is {self._elsewhere[args[0]]}"
            else:
                hint = did_you_mean(args[0], self.list_commands(ctx))
            ctx.fail(f"No such command {args[0]!r}{hint}")
        return super().resolve_command(ctx, args)


class LazyGroup(Group):
    """A group whose commands are tables by title: name -> (module:function, help)."""

    def __init__(
        self,
        *args: Any,
        lazy: Mapping[str, Mapping[str, tuple[str, str]]],
        aliases: Mapping[str, str],
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._sections = lazy
        self._lazy = {name: row for rows in lazy.values() for name, row in rows.items()}
        self._aliases = aliases

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._lazy)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        place = self._lazy.get(self._aliases.get(name, name))
        if place is None:
            return None
        module, _, function = place[0].partition(":")
        command = getattr(importlib.import_module(module), function)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, self._lazy))  # of all sections, so that their texts are in one column
        for title, rows in self._sections.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), text) for name, (_, text) in rows.items()])

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Like click's, with the error format of this module. Not standalone: returns the exit status."""

        def run() -> Any:
            return super(LazyGroup, self).main(
                args, prog_name or "utracefs", complete_var, standalone_mode=False, **extra
            )

        status = _guarded(run)
        drop_unwritten()
        if standalone_mode:
            sys.exit(status)
        return status


def _command_of(error: click.UsageError) -> str:
    """`record`, `perf stat`; empty for the command line as a whole."""
    return "" if error.ctx is None else error.ctx.command_path.partition(" ")[2]


def _usage(error: click.UsageError) -> str:
    """The error and the correct usage in one line; click prints four."""
    text = error.format_message().rstrip(".").replace("is not a valid integer range", "is not an integer")
    if isinstance(error, click.NoSuchOption) and error.option_name.lstrip("-")[:1].isdigit():
        text += "; put `--` in front of words that begin with a -"
    path = error.ctx.command_path if error.ctx is not None else "utracefs"
    return f"{text} (see {path} --help)"


_NO_ARGUMENTS: Final[Any] = getattr(click.exceptions, "NoArgsIsHelpError", ())
"""click 8.2 raises it for a group of commands without arguments; older versions print the help themselves."""


def _guarded(run: Callable[[], Any]) -> int:
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # see utracefs/command.py
    try:
        result = run()
        sys.stdout.flush()
    except _NO_ARGUMENTS as error:
        error.show()
        return int(error.exit_code)
    except click.UsageError as error:
        return _say(_command_of(error), _usage(error), error.exit_code)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.exceptions.Exit as error:
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        drop_unwritten(at_once=True)
        return 130
    except SystemExit:  # click's, for the next one
        return 0
    except Failure as error:
        _say(error.about, error.reason)
        if error.detail:
            click.echo(error.detail.encode("utf-8", "backslashreplace"), err=True)
        return error.status
    except TraceError as error:
        return _say("", error.text)
    except OSError as error:
        about = error.filename
        if isinstance(error, BrokenPipeError) and about in (None, "stdout", "stderr"):
            return 0  # the reader of our output (head, less) has closed it
        if isinstance(about, bytes):
            about = os.fsdecode(about)
        if about is None and isinstance(error, FileNotFoundError) and not os.stat(".").st_nlink:
            # The error of os.getcwd() has no name.
            return _say("", DELETED)
        reason = error.strerror or str(error)
        if error.errno == errno.ECONNRESET:  # of the daemon; records since then are in no output
            reason += "; give the command again when a daemon is there"
        return _say(str(about or ""), reason)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and (text := how_to_install(error, "daemon")):
            return _say("", text)
        if os.environ.get("UTRACEFS_DEBUG"):
            raise
        return _say(
            "internal error", f"{type(error).__name__}: {error} (UTRACEFS_DEBUG=1 shows where it happened)"
        )
    return result if isinstance(result, int) else 0


def _say(about: str, reason: str, status: int = 1) -> int:
    # The daemon's reasons often begin with the path; print it once.
    reason = reason.removeprefix(f"{about}: ")
    text = ": ".join(part for part in ("utracefs", about, reason) if part)
    with contextlib.suppress(OSError):  # the status tells it, too
        click.echo(" ".join(text.encode("utf-8", "backslashreplace").decode().split()), err=True)
    return status


SECTIONS: Final = {
    "Record and look": {
        "record": (
            "utracefs.cli.record.record:record",
            "Record events of a command, or until Ctrl-C, into trace.dat.",
        ),
        "dump": (
            "utracefs.cli.record.dump:dump",
            "Let flight recorders (record --flight) write their records.",
        ),
        "report": ("utracefs.cli.convert.report:report", "Print a trace.dat."),
        "export": (
            "utracefs.cli.convert.export:export",
            "Convert a recording, or the daemon's buffer, for other tools.",
        ),
        "sql": ("utracefs.cli.convert.sql:sql", "Ask a recording in SQL."),
        "list": ("utracefs.cli.look.status:list_events", "Events that programs have declared."),
        "status": ("utracefs.cli.look.status:status", "Events, who uses them, what was recorded and lost."),
        "doctor": ("utracefs.cli.look.doctor:doctor", "Say why nothing arrives."),
    },
    "Live": {
        "enable": ("utracefs.cli.look.switch:enable", "Record events into the ring buffer."),
        "disable": ("utracefs.cli.look.switch:disable", "Stop recording events."),
        "stream": ("utracefs.cli.look.files:stream", "Print records as they are emitted, until Ctrl-C."),
        "top": ("utracefs.cli.live.top:top", "Show rates, bytes and losses of events and processes, live."),
        "hist": ("utracefs.cli.live.hist:hist", "Count records by the values of their fields."),
        "attach": ("utracefs.cli.live.attach:attach", "Give events to a plug-in, and show its report."),
        "perf": ("utracefs.cli.perf.perf:perf", "Count and sample events."),
        "bpftrace": ("utracefs.cli.run.bpf:bpftrace", "Run bpftrace on events."),
        "bpf": ("utracefs.cli.run.bpf:bpf", "Run a program that uses libbpf on events."),
    },
    "The tree": {
        "cat": ("utracefs.cli.look.files:cat", "Print files of the tree."),
        "write": ("utracefs.cli.look.files:write", "Write to a file of the tree, as echo TEXT > FILE does."),
        "ls": ("utracefs.cli.look.files:ls", "List a directory of the tree."),
        "instance": ("utracefs.cli.look.instance:instance", "Make, remove and list instances."),
        "mount": ("utracefs.cli.mount:mount", "Show the tree as files, for cat, echo and trace-cmd."),
    },
    "Production": {
        "daemon": ("utracefs.cli.daemon:daemon", "Run a daemon (the same as utracefsd)."),
        "metrics": ("utracefs.cli.metrics.metrics:metrics", "Numbers of the daemon, for Prometheus."),
        "forward": (
            "utracefs.cli.forward.forward:forward",
            "Send records to another host, over a spool on disk.",
        ),
        "fleet": ("utracefs.cli.fleet.fleet:fleet", "Control the forwarders of many hosts, and see them."),
    },
    "Programs and shells": {
        "reg": ("utracefs.cli.look.events:reg", "Declare a persistent event, or delete one."),
        "emit": ("utracefs.cli.look.events:emit", "Emit one record, from a shell script."),
        "c-client": ("utracefs.cli.c_client:c_client", "Say where the C client and the preload library are."),
        "completion": ("utracefs.cli.daemon:completion", "Print the completion script of a shell."),
    },
}
"""In the order of the help and of docs/command-line.md."""

_ELSEWHERE: Final = {
    "clear": "`utracefs write trace ''`",
    "convert": "`utracefs export`",
    "data": "`utracefs export`",
    "evlist": "`utracefs list`, or of a recording `utracefs sql FILE`",
    "extract": "`utracefs export --daemon -o FILE`",
    "help": "`utracefs --help`",
    "listen": "`utracefs forward`",
    "reset": "`utracefs disable '*'`",
    "restore": "`utracefs report --recover`",
    "script": "`utracefs report` or `utracefs perf script`",
    "show": "`utracefs cat trace`",
    "snapshot": "`utracefs write snapshot 1`",
    "split": "`utracefs export --since S --until S -o FILE`",
    "start": "`utracefs enable EVENT`",
    "stat": "`utracefs status` or `utracefs perf stat`",
    "stop": "`utracefs write tracing_on 0`",
    "trace": "`utracefs stream` or `utracefs perf trace`",
}

COMMANDS: Final = {name: row for rows in SECTIONS.values() for name, row in rows.items()}


def _print_version(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        click.echo(f"utracefs {utracefs.__version__}")
        ctx.exit()


@click.group(
    cls=LazyGroup,
    lazy=SECTIONS,
    aliases={"echo": "write"},
    elsewhere=_ELSEWHERE,
    context_settings=COMMAND_SETTINGS,
    epilog="Events are named as perf and trace-cmd do: user_events:NAME, NAME, or globs of either.",
)
@click.option(
    "--dir",
    "directory",
    metavar="DIR",
    help="Directory of the daemon's sockets. [default: $UTRACEFS_DIR, else yours, else the system's]",
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Print the version.",
)
def cli(directory: str | None) -> None:
    """Trace programs with user_events: record them and inspect them, without root and without support of the
    kernel."""


def main(args: Sequence[str] | None = None) -> NoReturn:
    """The command line. The installed command `utracefs` calls it through utracefs/command.py."""
    guard()
    cli.main(args, prog_name="utracefs")
    raise AssertionError
