"""One call of flush: who waits, for how long, and what it learns."""

import threading

import pytest

from utracefs.flushing import Flush


@pytest.mark.parametrize("done", [True, False])
def test_what_the_session_thread_says(done: bool) -> None:
    flush = Flush(7)
    assert (flush.records, flush.done) == (7, False)
    flush.end(done)
    flush.wait(60)
    assert flush.done is done


@pytest.mark.parametrize("timeout_s", [0, -1, -1e9, 0.01])
def test_nobody_ends_it(timeout_s: float) -> None:
    """-1 would be for ever to the lock."""
    flush = Flush(0)
    flush.wait(timeout_s)
    assert not flush.done


def test_it_is_ended_while_it_is_waited_for() -> None:
    flush = Flush(0)
    thread = threading.Thread(target=flush.end, args=(True,))
    thread.start()
    flush.wait(60)
    assert flush.done
    thread.join()


def test_it_may_end_after_the_caller_gave_up() -> None:
    flush = Flush(0)
    flush.wait(0)
    flush.end(True)
    assert flush.done


def test_flushes_do_not_end_each_other() -> None:
    first, second = Flush(1), Flush(2)
    first.end(True)
    second.wait(0)
    assert not second.done


def test_it_ends_once() -> None:
    flush = Flush(0)
    flush.end(True)
    with pytest.raises(RuntimeError):
        flush.end(True)
