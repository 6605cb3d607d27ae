"""Programs in C that fork, close all descriptors, load and unload libraries, and end."""

from __future__ import annotations

import os
import re
import resource
import subprocess
from functools import partial
from pathlib import Path

import pytest

from tests.client.c.building import SOURCE
from tests.client.c.conftest import Run
from tests.client.c.test_emit import WAYS, lines, numbers, of_way
from tests.client.daemons.fake_daemon import wait_for
from tests.integration.conftest import DaemonProcess

pytestmark = pytest.mark.usefixtures("events_on")
NEEDS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


@pytest.mark.parametrize(
    ("children", "threads"), [(50, 2), pytest.param(200, 3, marks=pytest.mark.long)], ids=["50", "200"]
)
def test_children_of_a_program_whose_threads_emit(
    daemon: DaemonProcess, run: Run, children: int, threads: int
) -> None:
    run("emitting", "fork-threads", children, threads)

    def of_children() -> list[tuple[str, str]]:
        with daemon.tree() as tree:
            text = tree.read_file("trace").decode()
        return re.findall(r"emitting-(\d+) .* who=0x3e8 \(1000\) i=0x\w+ \((\d+)\)", text)

    wait_for(lambda: len(of_children()) == children, what=of_children)
    assert sorted(int(i) for _, i in of_children()) == list(range(children))
    assert len({pid for pid, _ in of_children()}) == children
    numbers(daemon)


@WAYS
@pytest.mark.parametrize("before", [0, 1])
def test_a_child_that_shares_its_parents_memory(
    daemon: DaemonProcess, run: Run, way: str, before: int
) -> None:
    """vfork(2): its records are its parent's. It opens no connection: that would be in its own table of
    descriptors, not in its parent's. So without a connection it cannot emit."""
    run("emitting", "vfork", before, **of_way(way))
    found = [int(i) for line in lines(daemon, "c_count") for i in re.findall(r" i=0x\w+ \((\d+)\)", line)]
    assert found == [0, 100, 200] if before else found[-1] == 200


@WAYS
@pytest.mark.parametrize("late", [0, 1, 2, 3, 4, 5])
def test_all_descriptors_are_closed(daemon: DaemonProcess, run: Run, way: str, late: int) -> None:
    """The program continues, and soon emits again over a new connection; its own files are left alone.

    late: they are closed after the library has seen that they are its own; 2: also before it has sent a byte;
    3, 4 and 5: once more, before its next ring has memory, and before and after it connects again.
    """
    assert run("emitting", "closefrom", late, 300, **of_way(way)) == "lost 0\n"
    assert lines(daemon, "c_count") == [f" who=0x5 (5) i={i:#x} ({i})" for i in range(300)]


def test_a_missing_resource_is_reported(daemon: DaemonProcess, built: Path) -> None:
    """Wherever the resource ends: a library, the thread, the connection, a ring. (127: the loader's end.)"""
    limits = [(resource.RLIMIT_NOFILE, number) for number in range(3, 10)]
    limits += [(resource.RLIMIT_AS, kib << 10) for kib in range(2000, 6200, 100)]
    seen = set()
    for which, value in limits:
        done = subprocess.run(
            [built / "tests" / "basic", "9"],
            preexec_fn=partial(resource.setrlimit, which, (value, value)),
            capture_output=True,
            text=True,
            check=False,
        )
        told = re.search("^utracefs: (events are off: .*)", done.stderr, re.MULTILINE)
        assert done.returncode == 127 or "enabled 1" in done.stdout or told, (value, done)
        seen.add(told and told[1])
    assert len(seen) >= 4, seen


WITHOUT_THREADS = """
#include <utracefs.h>
#include <errno.h>
#include <pthread.h>
int pthread_create(pthread_t *t, const pthread_attr_t *a, void *(*run)(void *), void *arg)
{
	(void)t, (void)a, (void)run, (void)arg;
	return EAGAIN;
}
UTRACEFS_EVENT(c_alone, (u64, n));
int main(void) { return utracefs_enabled(&c_alone); }
"""


def test_a_warning_at_a_limit_of_files_sends_no_signal(built: Path, tmp_path: Path) -> None:
    """The program's own thread writes it: no SIGXFSZ."""
    (tmp_path / "alone.c").write_text(WITHOUT_THREADS)
    program = compiled(tmp_path / "alone.c", built)
    for limit in (4096, 0):
        with (tmp_path / f"err{limit}").open("wb") as error:
            done = subprocess.run(
                [program],
                stderr=error,
                preexec_fn=partial(resource.setrlimit, resource.RLIMIT_FSIZE, (limit, limit)),
                check=False,
            )
        told = (tmp_path / f"err{limit}").read_text()
        assert done.returncode == 0 and ("no thread for them can start" in told) == (limit > 0)


CROWDED = """
#include <utracefs.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
UTRACEFS_EVENT(c_count, (u32, n));
int main(void)
{
	struct rlimit limit = {ROOM << 10, RLIM_INFINITY};
	UTRACEFS_EMIT(c_count, 1);
	if (utracefs_flush(20000) || setrlimit(RLIMIT_AS, &limit))
		return 1;
	for (int i = 0; i < 5; i++) {
		if (fork() == 0) {
			UTRACEFS_EMIT(c_count, 2);
			UTRACEFS_EMIT(c_count, 3);
			_exit(0);
		}
		wait(NULL);
	}
	return 0;
}
"""


@WAYS
@pytest.mark.parametrize("room_kb", [1, 5 << 10, 7 << 10])
def test_children_without_address_space(
    daemon: DaemonProcess, built: Path, tmp_path: Path, way: str, room_kb: int
) -> None:
    """Each record is stored, or counted as lost."""
    (tmp_path / "crowded.c").write_text(CROWDED)
    program = compiled(tmp_path / "crowded.c", built, f"-DROOM={room_kb}l")
    subprocess.run([program], env={**os.environ, **of_way(way)}, check=True)
    assert sum(numbers(daemon)) == 11


LARGE = """
#include <utracefs.h>
#include <string.h>
static __thread char large[LARGE];
UTRACEFS_EVENT(c_large, (u64, n));
int main(void)
{
	memset(large, 1, sizeof(large));
	UTRACEFS_EMIT(c_large, large[5]);
	return utracefs_flush(20000) != 0;
}
"""


@pytest.mark.parametrize("size", [55_000, 58_000, 59_000, 59_500, 124_000, 500_000])
def test_threads_of_a_program_need_much_memory(
    daemon: DaemonProcess, built: Path, tmp_path: Path, size: int
) -> None:
    """Its thread-local variables are on the stack of every thread; our thread gets its own needs on top."""
    (tmp_path / "large.c").write_text(LARGE)
    program = compiled(tmp_path / "large.c", built, f"-DLARGE={size}")
    assert subprocess.run([program], check=False).returncode == 0
    assert lines(daemon, "c_large") == [" n=0x1 (1)"]


LIBRARY = """
#include <utracefs.h>
#include "answered.h"
UTRACEFS_EVENT(c_loaded, (u32, n));
/* First it waits: only then does the library have all of its descriptors. */
__attribute__((visibility("default"))) void work(int n)
{
	if (n || answered(&c_loaded))
		UTRACEFS_EMIT(c_loaded, n);
}
"""

LOADER = """
#include <dirent.h>
#include <dlfcn.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
/* The number of lines of a file, or of entries of a folder; 0: there is no /proc. */
static int size_of(const char *path)
{
	FILE *file = fopen(path, "r");
	DIR *folder = file ? opendir(path) : NULL;
	int nr = 0;
	for (int c; file && !folder && (c = getc(file)) != EOF;)
		nr += c == '\\n';
	while (folder && readdir(folder))
		nr++;
	if (folder)
		closedir(folder);
	return file ? fclose(file) + nr : 0;
}
int main(int argc, char **argv)
{
	int maps = 0, files = 0, memory = 0, most = atoi(argv[2]);
	for (int i = 0; i < most; i++) {
		void *library = dlopen(argv[1], RTLD_NOW);
		void (*work)(int) = library ? (void (*)(int))dlsym(library, "work") : NULL;
		if (!work)
			return puts(dlerror());
		work(i);
		dlclose(library);
		if (i == most / 2) {
			maps = size_of("/proc/self/maps");
			files = size_of("/proc/self/fd");
			memory = (int)mallinfo2().uordblks;
		}
	}
	return 0 * argc + (size_of("/proc/self/maps") > maps + 3) + 2 * (size_of("/proc/self/fd") > files) +
	       4 * ((int)mallinfo2().uordblks > memory + 8192);
}
"""


def compiled(source: Path, built: Path, *options: str, library: tuple[str, ...] = ()) -> Path:
    made = source.with_suffix(".so" if "-shared" in options else "")
    compiler = "g++" if source.suffix == ".cpp" else "gcc"
    done = subprocess.run(
        [
            compiler, "-Wall", "-Wextra", "-Werror", "-O2", "-fPIC", f"-I{SOURCE / 'include'}",
            f"-I{SOURCE / 'tests'}", source, "-o", made, *options,
            *(library or (f"-L{built}", "-lutracefs", f"-Wl,-rpath,{built}")), "-pthread", "-ldl",
        ],
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return made


@pytest.mark.parametrize("times", [300, pytest.param(10_000, marks=pytest.mark.soak)])
@pytest.mark.parametrize("kind", ["shared", "static", pytest.param("static without /proc", marks=NEEDS_ROOT)])
def test_a_library_with_events_comes_and_goes(
    daemon: DaemonProcess, built: Path, tmp_path: Path, kind: str, times: int
) -> None:
    """With libutracefs.a its thread is in the library that is unloaded. No memory and no descriptor stay."""
    (tmp_path / "loaded.c").write_text(LIBRARY)
    (tmp_path / "loader.c").write_text(LOADER)
    static = (str(built / "libutracefs.a"),) if kind != "shared" else ()
    library = compiled(tmp_path / "loaded.c", built, "-shared", "-fvisibility=hidden", library=static)
    loader = compiled(tmp_path / "loader.c", built, library=("-ldl",))
    script = 'mount -t tmpfs -o size=4k none /proc; exec "$@"'
    before = ["unshare", "-m", "sh", "-c", script, "sh"] if "without" in kind else []
    done = subprocess.run([*before, loader, library, str(times)], timeout=400, check=False)
    assert done.returncode == 0
    assert lines(daemon, "c_loaded") == [f" n={n:#x} ({n})" for n in range(times)]


@WAYS
def test_a_sandbox_that_refuses_poll(daemon: DaemonProcess, run: Run, way: str) -> None:
    """The thread looks now and then instead of all the time."""
    assert int(run("emitting", "sandbox", 600, **of_way(way))) < 30
    assert lines(daemon, "c_count") == [" who=0x7 (7) i=0x0 (0)", " who=0x7 (7) i=0x1 (1)"]


REFUSED = """
#include <utracefs.h>
#include <stdio.h>
#include <unistd.h>
static void say(const char *text) { printf("%s\\n", text); }
int main(int argc, char **argv)
{
	struct utracefs_event *event;
	utracefs_on_warning(argc > 1 ? say : NULL);
	event = utracefs_declare("c_refused u16 status", 0);
	while (utracefs_enabled(event))
		usleep(1000);
	return argv == NULL;
}
"""


@WAYS
def test_a_program_says_once_that_an_event_is_refused(
    daemon: DaemonProcess, built: Path, tmp_path: Path, way: str
) -> None:
    (tmp_path / "refused.c").write_text(REFUSED)
    program = compiled(tmp_path / "refused.c", built)
    with daemon.tree() as tree:
        tree.write_file("dynamic_events", b"u:c_refused u32 status\n")
    env = {**os.environ, **of_way(way)}
    text = "event c_refused is off: event 'c_refused' exists with other fields: "
    text += "'c_refused u32 status', until `utracefs reg --delete` (EADDRINUSE)\n"
    for option, out, error in (((), "", "utracefs: " + text), (("call",), text, "")):
        done = subprocess.run(
            [program, *option], capture_output=True, text=True, env=env, timeout=60, check=False
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, out, error)
