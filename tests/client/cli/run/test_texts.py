"""The texts of an instance outlive its events."""

from tests.client.cli.kit import Cli
from utracefs.cli.instance_option import TOP
from utracefs.cli.run.texts import Texts
from utracefs.tree.event_names import EventName
from utracefs.tree.tracefs import Tracefs

EV = EventName("user_events", "ev")


def test_an_event_that_is_gone_keeps_its_format(traced: Cli) -> None:
    traced.run("reg", "ev u32 a")
    with Tracefs(traced.env["UTRACEFS_DIR"], timeout_s=30) as tree:
        texts, all_events = Texts(tree, TOP), Texts(tree, TOP, of_all_events=True)
        texts.read()
        all_events.read()
        assert texts.events == [] and EV in all_events.events
        traced.run("enable", "ev")
        texts.read()
        traced.run("disable", "ev")
        traced.run("reg", "--delete", "ev")
        texts.read()
        assert texts.events == [EV]
        (text,) = texts.contents.formats[b"user_events"]
        assert b"name: ev" in text and b"field:u32 a" in text
        assert texts.clock == "local" and texts.origin.host
