"""`utracefs instance`."""

import json
import os

from tests.client.cli.kit import Cli
from utracefs.tree.tracefs import Tracefs


def test_make_list_remove(traced: Cli) -> None:
    assert traced.out("instance", "list") == ""
    assert json.loads(traced.out("instance", "list", "--json")) == []
    traced.run("instance", "create", "b", "a c")
    assert traced.out("instance", "list") == "a c\nb\n"
    assert "of this name already" in traced.fails("instance", "create", "b")
    traced.run("reg", "ev")
    traced.run("enable", "-B", "b", "ev")
    traced.run("emit", "ev")
    _, state = json.loads(traced.out("instance", "list", "--json"))
    assert (state["name"], state["events"]) == ("b", ["user_events:ev"])
    assert state["buffer"]["entries"] == 1
    traced.run("instance", "remove", "a c", "b")
    assert traced.out("instance", "list") == ""
    assert traced.fails("instance", "remove", "b").startswith("utracefs: b: no such instance; ")


def test_one_that_is_in_use_stays(traced: Cli) -> None:
    traced.run("instance", "create", "busy")
    with Tracefs(traced.env["UTRACEFS_DIR"], timeout_s=30) as tree:
        tree.open("instances/busy/trace_pipe", os.O_RDONLY)
        assert traced.fails("instance", "remove", "busy").startswith("utracefs: busy: ")
        assert traced.out("instance", "list") == "busy\n"


def test_names(traced: Cli) -> None:
    assert b"is not the name of an instance" in traced.run("instance", "create", "a/b", status=2).stderr
    assert b"Missing argument" in traced.run("instance", "create", status=2).stderr
