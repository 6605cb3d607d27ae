"""A virtual screen, and KernelShark on it."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

NOBODY = 65534
PATIENCE_S = 60.0
FIRST_DISPLAY = 200
TRIES = 10
ABSENT = ("kvm_combo", "sched_events")
"""Plug-ins for events of a kernel."""


@contextlib.contextmanager
def open_folder() -> Iterator[Path]:
    """KernelShark shows a question to root, so it runs as another user, who gets access to these paths."""
    path = Path(tempfile.mkdtemp(prefix="utracefs-test-"))
    try:
        for name in ("home", "run"):
            (path / name).mkdir(mode=0o700)
            if not os.geteuid():
                os.chown(path / name, NOBODY, NOBODY)
        path.chmod(0o755)
        yield path
    finally:
        shutil.rmtree(path)


@contextlib.contextmanager
def screen(size: str = "1280x800") -> Iterator[str]:
    """Its display; any local process may draw on it. The number is drawn at random: the lowest free one may
    be taken by a server that starts just now, or by one that is not visible here."""
    first = FIRST_DISPLAY + os.getpid() % 20_000
    for number in range(first, first + TRIES):
        ready, ready_w = os.pipe()
        words = ["Xvfb", f":{number}", "-displayfd", str(ready_w), "-screen", "0", f"{size}x24"]
        words += ["-nolisten", "tcp", "-ac"]
        with (
            open(ready, "rb") as answer,
            subprocess.Popen(words, pass_fds=[ready_w], stderr=subprocess.DEVNULL) as server,
        ):
            os.close(ready_w)
            if not answer.readline():  # it has ended: the number is taken
                continue
            try:
                yield f":{number}"
                return
            finally:
                server.terminate()
    raise AssertionError(f"Xvfb starts with none of the displays from :{first} on")


@contextlib.contextmanager
def shown_in_kernelshark(
    path: Path, display: str, folder: Path, size: tuple[int, int] = (1280, 800)
) -> Iterator[list[str]]:
    """KernelShark with the file, once its window exists. The list gets its output, without lines about
    plug-ins, when it has ended."""
    environ = {
        **os.environ,
        "DISPLAY": display,
        "HOME": str(folder / "home"),
        "XDG_RUNTIME_DIR": str(folder / "run"),
        "QT_QPA_PLATFORM": "xcb",
        "MESA_SHADER_CACHE_DISABLE": "true",  # it would be in the home of the user's entry in passwd
    }
    said: list[str] = []
    with subprocess.Popen(
        ["kernelshark", "-qwindowgeometry", f"{size[0]}x{size[1]}+0+0", str(path)],
        env=environ,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        user=None if os.geteuid() else NOBODY,
        group=None if os.geteuid() else NOBODY,
        extra_groups=None if os.geteuid() else [],
    ) as shark:
        try:
            deadline = time.monotonic() + PATIENCE_S
            while f'"Kernel Shark ({path})"' not in (seen := _windows(display)):
                if shark.poll() is not None:
                    said_until_then, _ = shark.communicate(timeout=60)
                    raise AssertionError(f"kernelshark ended with {shark.returncode}: {said_until_then}")
                assert time.monotonic() < deadline, seen
                time.sleep(0.1)
            yield said
            assert shark.poll() is None
        finally:
            shark.terminate()
        lines = shark.communicate(timeout=60)[0].splitlines()
    absent = {f'plugin "{name}" failed to initialize on stream {path}' for name in ABSENT}
    said += [line for line in lines if line not in absent and not line.startswith("Loading")]


def _windows(display: str) -> str:
    """Titles of all windows, as far as possible: one that disappears meanwhile ends xwininfo."""
    words = ["xwininfo", "-display", display, "-root", "-tree"]
    done = subprocess.run(words, capture_output=True, text=True, errors="replace", timeout=60, check=False)
    return done.stdout or done.stderr


def screenshot(display: str) -> bytes:
    """A PNG of the whole screen."""
    words = ["import", "-display", display, "-window", "root", "png:-"]
    return subprocess.run(words, capture_output=True, timeout=60, check=True).stdout
