"""`utracefs attach`, with a plug-in that counts."""

from pathlib import Path

import pytest

from tests.client.cli.kit import Cli
from utracefs.cli.live import attach
from utracefs.tree.tracefs import Tracefs


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


def test_a_busy_plugin_is_asked_again(
    traced: Cli, plugin_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (plugin_path / "slow").touch()
    with Tracefs(traced.env["UTRACEFS_DIR"]) as tree:
        monkeypatch.setattr(attach, "BUSY_S", 0)
        with pytest.raises(OSError, match="is busy; ask for its report again"):
            attach.report_of(tree, "tally")
        (plugin_path / "slow").touch()
    assert traced.out("attach", "tally", "--report") == "0 records\n"
    assert not (plugin_path / "slow").exists()


def test_a_plugin_that_raises(traced: Cli, plugin_path: Path) -> None:
    """Its report does not have these records."""
    traced.run("reg", "ev u32 a")
    (plugin_path / "raises").touch()
    emit = traced.command("emit", "ev", "5")
    lost = (
        "utracefs: tally lost 1 records: it raised an error, or was too slow; the daemon's log says which\n"
    )
    assert traced.fails("attach", "tally", "--", *emit) == lost
    assert traced.fails("attach", "tally", "--report") == lost
    (plugin_path / "raises").unlink()
    assert traced.out("attach", "tally", "--", *emit) == "1 records\n"  # lost no more
