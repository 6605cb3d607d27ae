"""ftracetest, the kernel's own tests of tracefs, on a mount: the groups that only need events.

They are written for events of the kernel. In a copy of the scripts user events with the same names and fields
take their place (`PORT`), and `kernel_events.py` emits them instead of the scheduler. The scripts run in a
mount namespace where /sys/kernel/tracing is the mount, and change nothing of the machine.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.conftest import DaemonProcess
from tests.kernel_source import PREFERRED, kernel_source

TRACEFS = "/sys/kernel/tracing"

GROUPS = ("00basic", "dynevent", "event", "filter", "ftrace/tracing-error-log", "instances", "trigger")

CASE_S = 30
"""For a script, and again in an instance. They take 1 s each, on a busy machine 3 s."""

PORT = (
    (r"\bevents/(sched|kmem|raw_syscalls|signal)\b", "events/user_events"),
    (r"\b(sched|kmem)([:.])(?=\^?(sched_|kmalloc))", r"user_events\2"),
    (r"'(sched|kmem):", r"'user_events:"),
    (r"\bgrep (-v )?sched\b", r"grep \1user_events"),
    (r'for i in `seq 1 10` ; do \( echo "forked" > /dev/null\); done', "forked 10"),
    (r'\( ?echo "forked"\)', "forked 1"),
)
"""Replacements in each script."""

FUNCTIONS = """
forked() { echo "$PID sh 120 $1" > $PORT/request; read _ < $PORT/answer; }
"""

PING = """#!/bin/sh
echo "1 ping $((120 + $(nice))) 1" > $PORT/request; read _ < $PORT/answer
"""

RUN = """
test -e /sys/kernel/tracing/standing_events || exit 1  # it is not the machine's
for case in "$@"; do
    echo "case $case"
    timeout -k 5 $CASE_S ./ftracetest -K -vv -l logs "test.d/$case" < /dev/null
done
"""

NO_PROBES = "SKIP", "probes in the code of the kernel or of programs, and event probes: there are none"
NO_STACK = "SKIP", "there are no stacks of the kernel"
NO_MARKER_TRIGGERS = "SKIP", "markers have no triggers"
OTHER_WRITER = "FAIL", "the port: records come from another process than the shell"

EXPECTED = {
    "00basic/mount_options.tc": ("SKIP", "a mount has other options than tracefs"),
    "00basic/test_ownership.tc": ("SKIP", "a mount has other options than tracefs"),
    "dynevent/add_remove_btfarg.tc": NO_PROBES,
    "dynevent/add_remove_eprobe.tc": NO_PROBES,
    "dynevent/add_remove_fprobe.tc": NO_PROBES,
    "dynevent/add_remove_kprobe.tc": NO_PROBES,
    "dynevent/add_remove_tprobe.tc": NO_PROBES,
    "dynevent/add_remove_tprobe_module.tc": NO_PROBES,
    "dynevent/add_remove_uprobe.tc": NO_PROBES,
    "dynevent/clear_select_events.tc": NO_PROBES,
    "dynevent/eprobes_syntax_errors.tc": NO_PROBES,
    "dynevent/fprobe_args_vfs.tc": NO_PROBES,
    "dynevent/fprobe_entry_arg.tc": NO_PROBES,
    "dynevent/fprobe_syntax_errors.tc": NO_PROBES,
    "dynevent/generic_clear_event.tc": NO_PROBES,
    "dynevent/test_duplicates.tc": NO_PROBES,
    "dynevent/tprobe_syntax_errors.tc": NO_PROBES,
    "event/event-no-pid.tc": OTHER_WRITER,
    "event/event-pid.tc": OTHER_WRITER,
    "event/trace_printk.tc": ("UNRESOLVED", "there are no modules of the kernel"),
    "filter/event-filter-function.tc": ("SKIP", "there are no functions of the kernel to compare with"),
    "trigger/inter-event/trigger-action-hist-xfail.tc": ("XFAIL", "as in the kernel"),
    "trigger/inter-event/trigger-synthetic-eprobe.tc": NO_PROBES,
    "trigger/inter-event/trigger-synthetic-event-stack-legacy.tc": NO_STACK,
    "trigger/inter-event/trigger-synthetic-event-stack.tc": NO_STACK,
    "trigger/trigger-hist.tc": ("FAIL", ".sym shows no names of the kernel's functions"),
    "trigger/trigger-stacktrace.tc": ("FAIL", "the trigger records nothing: there is no stack of the kernel"),
    "trigger/trigger-trace-marker-hist.tc": NO_MARKER_TRIGGERS,
    "trigger/trigger-trace-marker-snapshot.tc": NO_MARKER_TRIGGERS,
    "trigger/trigger-trace-marker-synthetic-kernel.tc": NO_MARKER_TRIGGERS,
    "trigger/trigger-trace-marker-synthetic.tc": NO_MARKER_TRIGGERS,
}
"""Failing scripts, and why (docs/differences.md)."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The scripts, with `PORT`."""
    source = kernel_source()
    if not source.name.startswith(PREFERRED):
        pytest.skip(f"left out, since the results are listed for {PREFERRED}, and this is {source.name}")
    folder = tmp_path / "ftrace"
    shutil.copytree(source / "tools/testing/selftests/ftrace", folder)
    for path in folder.rglob("*.tc"):
        text = path.read_text()
        for pattern, by in PORT:
            text = re.sub(pattern, by, text)
        path.write_text(text)
    with (folder / "test.d/functions").open("a") as functions:
        functions.write(FUNCTIONS)
    runner, setting = folder / "ftracetest", folder / "setting"
    setting.write_text("950000\n")
    text = runner.read_text().replace("/proc/sys/kernel/sched_rt_runtime_us", str(setting))
    runner.write_text(text.replace("/tmp/ftracetest-dir", str(tmp_path / "dir")))
    return folder


@contextlib.contextmanager
def emitting(directory: str, port: Path) -> Iterator[None]:
    """`kernel_events.py` runs, and its events exist."""
    for name in ("request", "answer"):
        os.mkfifo(port / name)
    (port / "ping").write_text(PING)
    (port / "ping").chmod(0o755)
    words = [sys.executable, str(Path(__file__).with_name("kernel_events.py")), str(port)]
    with subprocess.Popen(words, env={**os.environ, "UTRACEFS_DIR": directory}) as process:
        try:
            (port / "request").write_text("1 sh 120 0\n")
            assert (port / "answer").read_text() == "done\n"
            yield
        finally:
            process.kill()


def results(said: str) -> list[str]:
    """Results of a script: in the top instance, then in its own instance if it has a flag for that."""
    lines = re.findall(r"^(not ok|ok) \d+ [^#\n]*(?:# *(\w+))?", said, re.MULTILINE)
    return [why or {"ok": "PASS", "not ok": "FAIL"}[line] for line, why in lines]


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.parametrize("group", GROUPS)
def test_ftracetest(group: str, daemon: DaemonProcess, folder: Path, tmp_path: Path) -> None:
    if os.geteuid() or not os.path.isdir(TRACEFS):
        pytest.skip(f"left out, since only root runs ftracetest, and only where there is {TRACEFS}")
    port = tmp_path / "port"
    port.mkdir()
    tests = folder / "test.d"
    cases = sorted(
        name for path in tests.rglob("*.tc") if (name := str(path.relative_to(tests))).startswith(group)
    )
    inside = {"UTRACEFS_DIR": daemon.directory, "PORT": str(port), "CASE_S": str(CASE_S)}
    with contextlib.ExitStack() as stack:
        if group != "dynevent":  # these scripts remove all dynamic events, which the kernel's are not
            stack.enter_context(emitting(daemon.directory, port))
        done = subprocess.run(
            [sys.executable, "-m", "utracefs.cli", "mount", TRACEFS, "--", "bash", "-c", RUN, "bash", *cases],
            cwd=folder,
            env={**os.environ, **inside, "PATH": f"{port}:{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            errors="replace",
            timeout=360,
            check=False,
        )
    parts = [part.partition("\n") for part in ("\n" + done.stdout).split("\ncase ")[1:]]
    assert [name for name, _, _ in parts] == cases, done.stdout + done.stderr
    wrong = [
        f"{name}: {results(said)}\n{said[-3000:]}"
        for name, _, said in parts
        if set(results(said)) != {EXPECTED.get(name, ("PASS",))[0]}
    ]
    assert not wrong, "\n".join(wrong)
