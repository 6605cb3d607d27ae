"""The policy file, and the rate."""

import hmac
import struct
from pathlib import Path

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.client.forward.kit import batch_of, packed
from tests.client.recordings.event_header.event_headers import FIELDS
from tests.protocol.pages.stream_writer import PlainWriter
from utracefs.forward._body import Cutter
from utracefs.forward.batch import Batch
from utracefs.forward.policy import Policy, Rate
from utracefs.tree.event_names import EventName
from utracefs_protocol.events.declaration import parse
from utracefs_protocol.events.event_format import format_text, parse_format
from utracefs_protocol.pages._stream_ring import StreamRing
from utracefs_protocol.text import text_of


def read(tmp_path: Path, text: str) -> Policy:
    (tmp_path / "policy.toml").write_text(text)
    return Policy.read(tmp_path / "policy.toml")


def test_events(tmp_path: Path) -> None:
    policy = read(tmp_path, 'events = ["http_*", "other:one"]\nmax_records_per_s = 5')
    assert policy.max_records_per_s == 5
    assert policy.allows(EventName("user_events", "http_get"))
    assert policy.allows(EventName("other", "one"))
    assert not policy.allows(EventName("user_events", "one"))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("event = []", "'event' is not known; there are: events, fields, fleet, hash_key, max_records_per_s"),
        ('events = "x"', "`events` is not a list of texts"),
        ("events = [1]", "`events` is not a list of texts"),
        ('events = [""]', "`events` is not a list of texts"),
        ("max_records_per_s = 0", "not a number above 0"),
        ("max_records_per_s = true", "not a number above 0"),
        ('max_records_per_s = "5"', "not a number above 0"),
        ("max_records_per_s = nan", "not a number above 0"),
        ("events = [", "policy.toml: "),
        ("fields = 1", "`fields` has no table for each event"),
        ("[fields]\na = 1", "`fields` has no table for each event"),
        ("[fields.a]\nb = 'hide'", "'hide' is not redact or hash"),
        ("[fields.a]\nb = ['hash']", "['hash'] is not redact or hash"),
        ("fleet = 1", "`fleet` is a table of lease_s, max_wish_s, triggers"),
        ("[fleet]\nlease = 1", "`fleet` is a table"),
        ("[fleet]\nlease_s = 0", "`lease_s` is not a number of seconds above 0"),
        ('[fleet]\ntriggers = "hist"', "`triggers` is not a list of: disable_event, "),
        ('[fleet]\ntriggers = ["hits"]', "`triggers` is not a list of: disable_event, "),
        ("[fleet]\nmax_wish_s = true", "`max_wish_s` is not a number of seconds above 0"),
        ("[fields.a]\nb = 'hash'", "hash needs `hash_key`, the name of a file"),
        ("hash_key = 'short'\n[fields.a]\nb = 'hash'", "short has less than 16 bytes"),
    ],
)
def test_invalid(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "short").write_bytes(b"abc")
    with pytest.raises(ValueError, match=r"policy.toml: ") as refused:
        read(tmp_path, text)
    assert reason in str(refused.value)


COMMAND = "login u32 uid; u8 small; char[8] user; __rel_loc char[] password; __rel_loc u8[] blob; u64 other"


def left(policy: Policy, *values: object, command: str = COMMAND) -> tuple[Batch, bytes]:
    """The only record that leaves, and its raw bytes."""
    writer = PlainWriter()
    try:
        writer.describe(20, command.encode())
        writer.record(20, packed(command, *values))
        writer.publish()
        ring = StreamRing(writer.fd)
        ring.next_batch()
        format = parse_format(ring.described[20].partition(b"\0")[2])
        verdict = policy.verdict(EventName("user_events", text_of(format.name)), format)
        assert verdict is not None
        (((body, *_),), _) = Cutter(lambda _: verdict, 10, 1000).cut(ring, 10)
        ring.close()
    finally:
        writer.close()
    return attrs.evolve(batch_of({20: command}, []), body=body), body


def test_fields_are_hidden(tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(b"k" * 16)
    policy = read(
        tmp_path,
        "hash_key = 'key'\n[fields.'log*']\nuid = 'hash'\nuser = 'hash'\npassword = 'redact'\nblob = 'hash'\n"
        "nothing = 'hash'\n[fields.login]\nsmall = 'redact'\npassword = 'hash'\n[fields.x]\nother = 'redact'",
    )
    batch, body = left(policy, 12345, 7, "miller", "geheim", b"\1\2\3", 99)

    def of(name: bytes, value: bytes) -> bytes:
        return hmac.digest(b"k" * 16, name + b"\0" + value, "sha256")

    (record,) = batch
    assert record.fields == {
        "uid": int.from_bytes(of(b"uid", (12345).to_bytes(4, "little"))[:4], "little"),
        "small": 0,
        "user": of(b"user", b"miller").hex()[:6],
        "password": "",
        "blob": of(b"blob", b"\1\2\3")[:3],
        "other": 99,
    }
    assert b"miller" not in body and b"geheim" not in body


def test_a_field_that_cannot_be_found_hides_the_record(tmp_path: Path) -> None:
    policy = read(tmp_path, "[fields.login]\npassword = 'redact'")
    writer = PlainWriter()
    writer.describe(20, b"login __rel_loc char[] password; u32 a")
    writer.record(20, struct.pack("<HHI4s", 900, 900, 5, b"abcd"))
    writer.publish()
    ring = StreamRing(writer.fd)
    ring.next_batch()
    format = parse_format(ring.described[20].partition(b"\0")[2])
    verdict = policy.verdict(EventName("user_events", "login"), format)
    assert isinstance(verdict, tuple)
    (((body, *_),), _) = Cutter(lambda _: verdict, 10, 1000).cut(ring, 10)
    assert b"abcd" not in body
    ring.close()
    writer.close()


def test_a_field_that_an_event_does_not_have(tmp_path: Path) -> None:
    """It may be misspelt."""
    declared = parse(COMMAND.encode())
    format = parse_format(format_text(declared.name, 5, declared.fields))
    login, multi = EventName("user_events", "login"), EventName("user_events_multi", "login.0")
    for pattern in ("login", "user_events:login"):
        policy = read(tmp_path, f"[fields.{pattern!r}]\npasswrd = 'redact'\nuser = 'redact'")
        assert policy.missing(login, format) == {"passwrd"}
        assert policy.verdict(login, format) is None
        assert policy.verdict(multi, format)  # its other formats may have that field
        assert policy.verdict(EventName("user_events", "other"), format) is True
    assert read(tmp_path, "[fields.'log*']\npasswrd = 'redact'").verdict(login, format) == ()


def test_eventheader_does_not_leave_with_hidden_fields(tmp_path: Path) -> None:
    declared = parse(b"Shop_L4K1f " + FIELDS)
    format = parse_format(format_text(declared.name, 5, declared.fields))
    name = EventName("user_events", "Shop_L4K1f")
    assert read(tmp_path, "[fields.'Shop*']\nuser = 'redact'").verdict(name, format) is None
    assert read(tmp_path, "[fields.other]\nuser = 'redact'").verdict(name, format) is True
    assert read(tmp_path, "events = []\n[fields.'*']\nuser = 'redact'").verdict(name, format) is False


@pytest.mark.parametrize("pattern", ["log[in]", "user_events:log[in]"])
@pytest.mark.parametrize("event", ["user_events:log[in]", "user_events_multi:log[in].0"])
def test_a_name_that_is_a_glob(tmp_path: Path, pattern: str, event: str) -> None:
    """As a glob it does not match itself."""
    policy = read(tmp_path, f"[fields.{pattern!r}]\npassword = 'redact'")
    declared = parse(COMMAND.replace("login", "log[in]").encode())
    format = parse_format(format_text(declared.name, 5, declared.fields))
    verdict = policy.verdict(EventName(*event.split(":")), format)
    assert isinstance(verdict, tuple) and len(verdict) == 1


@pytest.mark.parametrize("pattern", ["user_events:login", "user_events:log*", "login", "*:login"])
def test_multi_format_events_do_not_leave_with_hidden_fields(tmp_path: Path, pattern: str) -> None:
    policy = read(tmp_path, f"[fields.{pattern!r}]\npassword = 'redact'")
    declared = parse(COMMAND.encode())
    format = parse_format(format_text(b"login.1f", 5, declared.fields))
    for name, is_hidden in (("login.1f", True), ("other.1f", False)):
        verdict = policy.verdict(EventName("user_events_multi", name), format)
        assert isinstance(verdict, tuple) == is_hidden


def test_rate() -> None:
    rate = Rate(10, now=0)
    assert rate.room(0) == 10
    rate.take(10)
    assert (rate.room(0.05), rate.room(0.25), rate.room(100)) == (0, 2, 10)
    assert Rate(None, now=0).room(0) > 2**60


OPEN = ["id", "cost.log2", "id.buckets=10", "common_pid.execname", "id+cost", "-(id)", "hitcount", "7"]
HIDDEN = [
    "secret",
    "secret.log2",
    "secret.buckets=10",
    "id+secret",
    "-(secret)",
    "id.sym-secret",
    "$x",
    "$own",
]
HIDDEN += [
    "$user_events.login.v1",
    "user_events.login.$v1",
    "stacktrace",
    "other",
    "secret.foo",
    "id.stacktrace",
]
PIECE = st.sampled_from([*OPEN * 4, *HIDDEN])
ACTIONS = ["onmax($own).save(id,cost)", "onchange($own).snapshot()"]
BAD_ACTIONS = ["onmax($own).save(secret)", "onmax($x).save(id)", "onmatch(user_events.login).trace(leak,$v1)"]
BAD_ACTIONS += ["onmax($own).trace(leak,id)", "onmax($own).leak(id)"]
FILTERS = ["id == 5", "cost > 1 && common_pid != 7"]
BAD_FILTERS = ["secret > 5", "id == 5 || (secret & 1)", "id ==", "leak == 1"]


@given(
    st.lists(PIECE, min_size=1, max_size=3),
    st.lists(PIECE, max_size=2),
    st.lists(PIECE, max_size=2),
    st.sampled_from([*ACTIONS, *BAD_ACTIONS, *[""] * 9]),
    st.sampled_from([*FILTERS, *BAD_FILTERS, *[""] * 9]),
    st.sampled_from(["name=shared", "name=", "pause", "size=1024", *[""] * 9]),
    st.permutations(range(5)),
)
def test_histograms_of_open_fields_leave_and_no_others(
    keys: list[str],
    values: list[str],
    variables: list[str],
    action: str,
    filter_: str,
    more: str,
    order: list[int],
) -> None:
    parts = ["keys=" + ",".join(keys), "vals=" + ",".join(values) if values else "", action, more]
    parts.append("own=" + ",z=".join([*variables, "id"]))
    text = "hist:" + ":".join(parts[n] for n in order if parts[n]) + (f" if {filter_}" if filter_ else "")
    pieces = {*keys, *values, *variables}
    is_open = not pieces & {*HIDDEN} and action not in BAD_ACTIONS and filter_ not in BAD_FILTERS
    is_open = is_open and not more.startswith("name")
    declared = parse(b"okay u32 id; u32 cost; u32 secret")
    format = parse_format(format_text(declared.name, 5, declared.fields))
    limited = Policy(fields={"user_events:login": {"secret": "hash"}})
    assert limited.allows_histogram(format, text) == is_open
    assert Policy().allows_histogram(format, text)


def test_synthetic_events_leave_only_by_name() -> None:
    format, event = (
        parse_format(format_text(b"leak", 5, parse(b"leak u32 v").fields)),
        EventName("synthetic", "leak"),
    )
    for events, verdict in ((("*:*",), None), (("*",), None), (("synthetic:leak",), True)):
        assert Policy(events, fields={"x": {"y": "redact"}}).verdict(event, format) is verdict
    assert Policy().verdict(event, format) is True
