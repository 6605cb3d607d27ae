"""An instance for one command, and the account of what it recorded."""

from tests.client.cli.kit import Cli
from utracefs.cli.own_instance import TOP, Account, Place, instance_names, own_instance, read_account
from utracefs.tracefs import Tracefs


def test_places() -> None:
    assert (TOP.path("trace"), TOP.consumer) == ("trace", "ftrace")
    place = Place("a b")
    assert (place.path("trace"), place.consumer) == ("instances/a b/trace", "ftrace:a b")


def test_an_account_of_a_time() -> None:
    """An event that was removed meanwhile took its numbers along."""
    assert Account(5, 3, 2, 1).since(Account(4, 1, 2, 3)) == Account(1, 2, 0, 0)


def test_it_goes_with_the_context(traced: Cli) -> None:
    with Tracefs(traced.env["UTRACEFS_DIR"], timeout_s=30) as tree:
        with own_instance(tree, "test") as place, own_instance(tree, "test") as other:
            assert [place.name, other.name] == instance_names(tree)
            assert other.name == place.name + "-2"
        assert instance_names(tree) == []


def test_it_goes_with_the_connection(traced: Cli) -> None:
    directory = traced.env["UTRACEFS_DIR"]
    with Tracefs(directory, timeout_s=30) as other:
        tree = Tracefs(directory, timeout_s=30)
        with own_instance(tree, "test"):
            tree.close()
            assert instance_names(other) == []


def test_the_account(traced: Cli) -> None:
    traced.run("reg", "ev u32 a; __rel_loc char[] text")
    with Tracefs(traced.env["UTRACEFS_DIR"], timeout_s=30) as tree, own_instance(tree, "test") as place:
        tree.write_file(place.path("set_event"), b"ev")
        before = read_account(tree, place)
        traced.run("emit", "ev", "1", "x")
        traced.run("emit", "ev", "1", "x" * 5000)
        assert read_account(tree, place).since(before) == Account(recorded=1, lost=1)
        assert read_account(tree, TOP) == Account()
