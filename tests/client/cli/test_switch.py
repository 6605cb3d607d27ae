"""`utracefs enable` and `disable`: switches of events, and standing ones."""

from tests.client.cli.kit import Cli


def test_standing_events(traced: Cli) -> None:
    traced.run("enable", "--standing", "user_events:later*")
    assert traced.out("cat", "standing_events") == "user_events:later*\n"
    traced.run("emit", "later_one u32 a", "1")
    assert "later_one: a=0x1 (1)" in traced.out("cat", "trace")
    traced.run("disable", "user_events:later*")
    assert traced.out("cat", "standing_events", "set_event") == ""
