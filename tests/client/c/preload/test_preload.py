"""Programs that use only the kernel's ABI, with the preload library (client/c/tests/preload_cases.c)."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.client.c.preload.programs import compiled, environment, run
from tests.client.daemons.fake_daemon import wait_for
from tests.client.daemons.real_daemon import Work

RECORDS: dict[str, dict[int, list[int]]] = {
    "ways_to_open": {1: [0, 1, 2, 3]},
    "descriptors": {2: [0, 1, 2, 3, 4, 5, 6, 7, 9]},
    "files": {3: list(range(20))},
    "by_number": {4: [0, 1, 2, 3]},
    "streams": {5: [0, 1, 2, 3]},
    "vforks": {8: [0]},
    "threads": {who: list(range(2000)) for who in range(4)},
    "no_large_files": {13: [0]},
    "no_descriptors": {14: [0]},
    "closed_within_libc": {15: [0]},
    "no_futex": {16: [0]},
}
"""For each case the content of the event "work": who, and the numbers."""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled("preload_cases.c", tmp_path_factory.mktemp("preload"), "-DOWN_MALLOC")


@pytest.mark.parametrize("case", list(RECORDS))
def test_a_case(work: Work, program: Path, case: str) -> None:
    assert run(program, case) == ""
    assert {who: sorted(n) for who, n in work.numbers().items()} == RECORDS[case]


def test_wrong_pointers(work: Work, program: Path) -> None:
    run(program, "wrong_pointers")
    assert work.numbers() == {0: [0]}


def test_a_file_that_only_has_the_name(work: Work, program: Path, tmp_path: Path) -> None:
    run(program, "other_files", tmp_path)
    assert work.numbers() == {}


def test_what_is_done_without_libc_is_noticed(work: Work, program: Path, tmp_path: Path) -> None:
    run(program, "behind_our_back", tmp_path / "other")
    assert work.numbers() == {6: [0]}


@pytest.mark.parametrize("how", ["rw", "w"])
def test_a_descriptor_that_another_process_gets(work: Work, program: Path, how: str) -> None:
    run(program, "hand_over", how)
    assert work.numbers() == {9: [0, 1, 2]}


def test_registrations_that_time_out(work: Work, program: Path) -> None:
    """The next one succeeds, and its number stays. The thread, which connects again, allocates nothing."""
    try:
        run(program, "late", work.daemon.pid)
    finally:
        work.daemon.signal(signal.SIGCONT)
    assert work.numbers() == {19: [0, 1]}


def test_a_write_that_finds_its_file_closed_waits_for_no_stopped_daemon(
    work: Work, program: Path, tmp_path: Path
) -> None:
    """Over the socket, which has no room for all records."""
    try:
        run(program, "strays", work.daemon.pid, tmp_path / "other", env=environment(UTRACEFS_DATA_RING="0"))
    finally:
        work.daemon.signal(signal.SIGCONT)


def test_the_first_write_of_another_process_waits_for_no_stopped_daemon(work: Work, program: Path) -> None:
    try:
        run(program, "hand_over_stopped", work.daemon.pid)
    finally:
        work.daemon.signal(signal.SIGCONT)
    wait_for(lambda: work.numbers() == {10: [0, 1, 2]}, what=work.numbers)


def test_first_writes_of_several_threads_wait_for_no_stopped_daemon(work: Work, program: Path) -> None:
    """One of the threads adopts the descriptor; the others use its connection."""
    try:
        run(program, "hand_over_to_threads", work.daemon.pid)
    finally:
        work.daemon.signal(signal.SIGCONT)
    wait_for(lambda: sorted(work.numbers().get(10, [])) == list(range(40)), what=work.numbers)


def test_signal_handlers_write_too(work: Work, program: Path) -> None:
    run(program, "handlers")
    assert work.numbers()[11] == list(range(200))


def test_a_thread_is_cancelled_in_its_writes(work: Work, program: Path) -> None:
    run(program, "cancelled")
    assert work.numbers()[12][-1] == 1


@pytest.mark.long
def test_each_of_1000_children_is_complete(work: Work, program: Path) -> None:
    """However it ends; or none of its records is there, if the daemon's queue was full."""
    run(program, "children", 1000)

    def are_whole(found: dict[int, list[int]]) -> bool:
        return len(found) > 300 and all(numbers == [0, 1] for numbers in found.values())

    wait_for(lambda: are_whole(work.numbers()), what=work.numbers)


def test_words_follow_the_event(work: Work, program: Path) -> None:
    """Words that became unwritable do no harm, a child's words are still updated, neighbouring bits do not
    change."""
    with subprocess.Popen(
        [program, "words"],
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdin and process.stdout and process.stderr
        for wanted, value in ((b"off\n", b"0"), (b"on\n", b"1")):
            assert os.read(process.stdout.fileno(), 4) == wanted
            work.tree.write_file("events/user_events/work/enable", value)
            process.stdin.write(b".")
            process.stdin.flush()
        _, errors = process.communicate(timeout=60)
        assert (process.returncode, errors) == (0, b"")
    assert {who: sorted(numbers) for who, numbers in work.numbers().items()} == {7: [0, 1]}
