"""error_log: its text, its limit, clearing it."""

from tests.daemon.tree.world import World


def test_error_log(world: World) -> None:
    world.now = 1_187_516_331_999
    world.instance.error_log.add("event filter parse error", "Field not found", b"nofield == 1", 8)
    assert world.cat(b"error_log") == (
        b"[ 1187.516331] event filter parse error: error: Field not found\n"
        b"  Command: nofield == 1\n"
        b"                   ^\n"
    )
    for number in range(9):
        world.instance.error_log.add("hist:user_events:a", f"error {number}", b"x", 0)
    text = world.cat(b"error_log")
    assert text.count(b"Command:") == 8
    assert b": error 1\n" in text
    assert b": error 0\n" not in text
    assert world.wa(b"error_log", b"ignored") == 8
    assert world.cat(b"error_log") == text
    world.wn(b"error_log", b"")
    assert world.cat(b"error_log") == b""
