"""`utracefs attach`, with a plug-in that counts."""

import errno
from typing import Any

import pytest

from tests.client.cli.kit import Cli
from utracefs.cli.live import attach
from utracefs_protocol.errors import TraceError


def test_attach(traced: Cli) -> None:
    assert "tally" in traced.out("attach", "--list").split()
    traced.run("reg", "ev u32 a")
    traced.run("attach", "tally", "-e", "user_events:*")
    assert "tally user_events:ev" in traced.out("attach", "--list")
    assert "ev # Used by other" in traced.out("cat", "user_events_status")
    traced.run("emit", "ev", "5")
    assert traced.out("attach", "tally", "--report") == "1 records\n"
    assert traced.out("attach", "tally", "-e", "ev", "--detach", "--report") == "1 records\n"
    assert traced.out("cat", "consumers/tally/set_event") == ""
    assert traced.fails("attach", "nosuch", "--report").startswith("utracefs: nosuch: no such plug-in; ")
    assert traced.fails("attach", "tally", "-e", "nosuch").startswith("utracefs: nosuch: no such event")
    traced.run("attach", "tally", status=2)


def test_attach_for_a_while(traced: Cli) -> None:
    traced.run("reg", "ev u32 a")
    emit = traced.command("emit", "ev", "5")
    assert traced.out("attach", "tally", "--", *emit) == "1 records\n"
    assert traced.out("attach", "tally", "-e", "ev", "--duration", "0.1") == "1 records\n"
    assert traced.out("cat", "consumers/tally/set_event") == ""
    traced.run("attach", "tally", "--", "sh", "-c", "exit 4", status=4)


@pytest.mark.parametrize("failures", [[errno.EBUSY] * 3, [errno.EBUSY, errno.EIO]])
def test_a_busy_plugin_is_asked_again(failures: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attach, "LOOK_S", 0)
    wanted = iter(failures)

    class Tree:
        def read_file(self, path: str) -> bytes:
            for error in wanted:
                raise TraceError(error, path)
            return b"3 records\n"

    tree: Any = Tree()
    if errno.EIO in failures:
        with pytest.raises(TraceError, match="consumers/tally/report"):
            attach.report_of(tree, "tally")
    else:
        assert attach.report_of(tree, "tally") == b"3 records\n"


def test_a_plugin_that_stays_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attach, "BUSY_S", 0)

    class Tree:
        def read_file(self, path: str) -> bytes:
            raise TraceError(errno.EBUSY, path)

    tree: Any = Tree()
    with pytest.raises(TraceError):
        attach.report_of(tree, "tally")
