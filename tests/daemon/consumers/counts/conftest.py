"""The tree's fixture `world`: event_counts is a file of it."""

from tests.daemon.tree.conftest import world

__all__ = ["world"]
