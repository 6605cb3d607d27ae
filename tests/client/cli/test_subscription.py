"""What a subscription changes, and that it changes it back."""

import errno

import pytest

from utracefs.cli.subscription import Subscription
from utracefs.tracefs import Tracefs


class FakeTree(Tracefs):
    """Files in a dict; standing_events and set_event behave as far as is needed."""

    def __init__(self, **files: bytes) -> None:
        self.files = {"standing_events": b"", "set_event": b"", **files}
        self.written: list[tuple[str, bytes]] = []
        self.error: OSError | None = None

    def read_file(self, path: str) -> bytes:
        return self.files[path]

    def write_file(self, path: str, data: bytes, truncate: bool = True) -> int:
        if self.error is not None:
            raise self.error
        self.written.append((path, data))
        word = data.strip()
        if path == "standing_events":
            words = self.files[path].split()
            words = [one for one in words if one != word[1:]] if word[:1] == b"!" else [*words, word]
            self.files[path] = b"".join(one + b"\n" for one in words)
        elif path.endswith("/enable"):
            _, system, name, _ = path.split("/")
            lines = self.files["set_event"].split(b"\n")
            lines.remove(f"{system}:{name}".encode())
            self.files["set_event"] = b"\n".join(lines)
        else:
            self.files[path] = data
        return len(data)


def test_only_what_was_added_is_taken_away() -> None:
    tree = FakeTree(standing_events=b"user_events:theirs\n", set_event=b"user_events:old\n")
    subscription = Subscription(tree, ["user_events:theirs", "user_events:*", "user_events:*"])
    subscription.start()
    assert tree.files["standing_events"] == b"user_events:theirs\nuser_events:*\n"
    tree.files["set_event"] = b"user_events:old\nuser_events:new\nother:event\n"
    subscription.stop_new()
    assert tree.files["standing_events"] == b"user_events:theirs\n"
    subscription.disable()
    assert tree.files["set_event"] == b"user_events:old\nother:event\n"
    tree.written.clear()
    subscription.stop_new()
    subscription.disable()
    assert tree.written == [], "twice is harmless"


def test_settings_are_given_back_in_reverse() -> None:
    tree = FakeTree(
        trace_clock=b"[local] global mono\n", buffer_size_kb=b"7 (expanded: 1408)\n", tracing_on=b"1\n"
    )
    subscription = Subscription(tree, [])
    subscription.set("trace_clock", "mono")
    subscription.set("buffer_size_kb", "64")
    subscription.set("tracing_on", "1")
    assert tree.written == [("trace_clock", b"mono\n"), ("buffer_size_kb", b"64\n")], "no change, no write"
    tree.written.clear()
    subscription.restore()
    subscription.restore()
    assert tree.written == [("buffer_size_kb", b"1408\n"), ("trace_clock", b"local\n")]


def test_what_is_gone_need_not_be_given_back() -> None:
    tree = FakeTree()
    subscription = Subscription(tree, ["user_events:*"])
    subscription.start()
    tree.files["set_event"] = b"user_events:new\n"
    tree.error = OSError(errno.EINVAL, "no such line", "standing_events")
    subscription.stop_new()
    tree.error = FileNotFoundError(errno.ENOENT, "gone", "events/user_events/new/enable")
    subscription.disable()


@pytest.mark.parametrize("error", [ConnectionResetError(104, "lost"), TimeoutError(110, "no answer")])
def test_a_lost_connection_is_told(error: OSError) -> None:
    tree = FakeTree()
    subscription = Subscription(tree, ["user_events:*"])
    subscription.start()
    tree.files["set_event"] = b"user_events:new\n"
    tree.error = error
    with pytest.raises(type(error)):
        subscription.stop_new()
    with pytest.raises(type(error)):
        subscription.disable()
