"""The policy file, and the rate."""

from pathlib import Path

import pytest

from utracefs.forward.policy import Policy, Rate
from utracefs.tree.event_names import EventName


def read(tmp_path: Path, text: str) -> Policy:
    (tmp_path / "policy.toml").write_text(text)
    return Policy.read(tmp_path / "policy.toml")


def test_events(tmp_path: Path) -> None:
    policy = read(tmp_path, 'events = ["http_*", "other:one"]\nmax_records_per_s = 5')
    assert policy.max_records_per_s == 5
    assert policy.allows(EventName("user_events", "http_get"))
    assert policy.allows(EventName("other", "one"))
    assert not policy.allows(EventName("user_events", "one"))


def test_everything(tmp_path: Path) -> None:
    assert read(tmp_path, "").allows(EventName("user_events", "x"))
    assert not read(tmp_path, "events = []").allows(EventName("user_events", "x"))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("event = []", "'event' is not known; there are: events, max_records_per_s"),
        ('events = "x"', "`events` is not a list of texts"),
        ("events = [1]", "`events` is not a list of texts"),
        ('events = [""]', "`events` is not a list of texts"),
        ("max_records_per_s = 0", "not a number above 0"),
        ("max_records_per_s = true", "not a number above 0"),
        ('max_records_per_s = "5"', "not a number above 0"),
        ("events = [", "policy.toml: "),
    ],
)
def test_invalid(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=r"policy.toml: ") as refused:
        read(tmp_path, text)
    assert reason in str(refused.value)


def test_rate() -> None:
    rate = Rate(10, now=0)
    assert rate.room(0) == 10
    rate.take(10)
    assert (rate.room(0.05), rate.room(0.25), rate.room(100)) == (0, 2, 10)
    assert Rate(None, now=0).room(0) > 2**60
