"""The counts of recorded and lost records."""

from tests.client.cli.kit import Cli, Files
from utracefs.cli.instance_option import TOP, Place
from utracefs.cli.run.ledger import Account, Ledger
from utracefs.cli.run.own_instance import own_instance
from utracefs.tree.tracefs import Tracefs


def test_the_account(traced: Cli) -> None:
    traced.run("reg", "ev u32 a; __rel_loc char[] text")
    traced.run("reg", "other u32 a")
    traced.run("enable", "*")
    traced.run("emit", "ev", "1", "before")
    with Tracefs(traced.env["UTRACEFS_DIR"], timeout_s=30) as tree, own_instance(tree, "test") as place:
        ledger, top = Ledger(tree, place), Ledger(tree, TOP)
        assert ledger.read() == Account()
        tree.write_file(place.path("set_event"), b"ev")
        traced.run("emit", "ev", "1", "x")
        traced.run("emit", "ev", "1", "x" * 5000)
        traced.run("emit", "other", "1")
        assert ledger.read() == Account(recorded=1, lost=1, unread=1)
        assert top.read() == Account(recorded=2, lost=1, unread=3), "what was there before does not count"
        tree.write_file(place.path("set_event"), b"")
        assert ledger.read() == Account(recorded=1, lost=1, unread=1), "what was disabled since does"


STATS = "emitted: {0}\nlost in data rings: {1}\nftrace:x: recorded {2} filtered 0 lost {3}\n"


FILES = {
    "available_events": b"user_events:a\nuser_events:b\n",
    "instances/x/set_event": b"user_events:a\nuser_events:new\n",
    "events/user_events/a/stats": b"emitted: 50\nlost in data rings: 40\nrefused: 3 n was float\n",
    "events/user_events/b/stats": b"emitted: 9\nlost in data rings: 9\n",
    "instances/x/per_cpu/cpu0/stats": b"dropped events: 3\n",
}


class FakeTree(Files):
    def __init__(self) -> None:
        super().__init__(FILES)

    def list_dir(self, path: str = "") -> list[tuple[str, str]]:
        return [("cpu0", "d")]


def test_earlier_losses_of_data_rings_do_not_count() -> None:
    tree = FakeTree()
    ledger = Ledger(tree, Place("x"))
    assert ledger.read() == Account()
    more = "refused: 5 n was float\nrefused: 1 n was None\n"
    tree.files["events/user_events/a/stats"] = (STATS.format(60, 42, 5, 5) + more).encode()
    tree.files["events/user_events/new/stats"] = STATS.format(4, 1, 3, 1).encode()
    tree.files["events/user_events/b/stats"] = b"emitted: 99\nlost in data rings: 99\n"
    tree.files["instances/x/per_cpu/cpu0/stats"] = b"dropped events: 5\noverrun: 4\n"
    refused = {"a.n was float": 2, "a.n was None": 1}
    assert ledger.read() == Account(recorded=8, lost=6, in_rings=3, dropped=2, overrun=4, refused=refused)
    del tree.files["events/user_events/a/stats"]
    assert ledger.read() == Account(recorded=3, lost=1, in_rings=1, dropped=2, overrun=4)


def test_a_ring_buffer_that_does_not_come_back() -> None:
    tree = FakeTree()
    file = "instances/x/per_cpu/cpu0/stats"
    tree.files[file] = b"entries: 0\noverrun: 3\nread events: 1\n"
    ledger = Ledger(tree, Place("x"))
    tree.files[file] = b"entries: 5\noverrun: 7\nread events: 2\n"
    assert ledger.read().overrun == 4
    assert ledger.come_back() is None
    tree.files[file] = b"entries: 1\noverrun: 0\nread events: 0\n"
    assert ledger.come_back() == 5
    assert ledger.come_back() is None  # another daemon has that one, before the next reading
    tree.files[file] = b"entries: 0\noverrun: 0\nread events: 0\n"
    assert ledger.come_back() == 1
    tree.files[file] = b"entries: 1\noverrun: 0\nread events: 0\n"
    assert ledger.read() == Account(overrun=4, unread=1)
    tree.files[file] = b"entries: 9\noverrun: 2\nread events: 1\n"
    assert ledger.come_back() is None
    assert ledger.read() == Account(overrun=6, unread=9)
