"""An instance for one command."""

import pytest

from tests.client.cli.kit import Cli
from utracefs.cli import Failure
from utracefs.cli.instance_option import instance_names
from utracefs.cli.run.own_instance import own_instance
from utracefs.tree.tracefs import Tracefs


def test_it_goes_with_the_context(traced: Cli) -> None:
    with Tracefs(traced.env["UTRACEFS_DIR"], timeout_s=30) as tree:
        with own_instance(tree, "test") as place, own_instance(tree, "test") as other:
            assert [place.name, other.name] == instance_names(tree)
            assert other.name == place.name + "-2"
        assert instance_names(tree) == []


def test_of_a_given_name(traced: Cli) -> None:
    with Tracefs(traced.env["UTRACEFS_DIR"], timeout_s=30) as tree:
        with own_instance(tree, "test", "mine") as place:
            assert instance_names(tree) == [place.name] == ["mine"]
            with pytest.raises(Failure, match="of this name already"), own_instance(tree, "test", "mine"):
                pass
        assert instance_names(tree) == []


def test_it_goes_with_the_connection(traced: Cli) -> None:
    directory = traced.env["UTRACEFS_DIR"]
    with Tracefs(directory, timeout_s=30) as other:
        tree = Tracefs(directory, timeout_s=30)
        with own_instance(tree, "test"):
            tree.close()
            assert instance_names(other) == []
