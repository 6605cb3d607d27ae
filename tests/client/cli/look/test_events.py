"""`utracefs reg` and `emit`, against the real daemon."""

import json
import re

import pytest

from tests.client.cli.kit import Cli
from utracefs_protocol.limits import MAX_PAYLOAD

REQUEST = "http_request u16 status; s32 usec; __rel_loc char[] path"


def test_declare_enable_emit_look_delete(traced: Cli) -> None:
    traced.run("reg", REQUEST)
    assert traced.out("list") == "user_events:http_request\n"
    assert traced.out("list", "--fields", "http*") == f"user_events:{REQUEST}\n"
    (described,) = json.loads(traced.out("list", "--json"))
    assert (described["system"], described["name"], described["enabled"]) == (
        "user_events",
        "http_request",
        False,
    )
    assert described["fields"][1] == {"type": "s32", "name": "usec", "offset": 10, "size": 4, "signed": True}

    assert (
        traced.fails("emit", "http_request", "200", "5", "/")
        == "utracefs: http_request: no consumer is attached to it; "
        "`utracefs enable http_request` records it\n"
    )
    traced.run("enable", "http_request")
    assert traced.out("cat", "set_event") == "user_events:http_request\n"
    traced.run("emit", "http_request", "0xc8", "-5", "/größer")
    traced.run("emit", REQUEST, "404", "7", "/none")
    lines = traced.out("cat", "trace").splitlines()
    assert lines[-2].endswith("http_request: status=0xc8 (200) usec=0xfffffffb (-5) path=/größer")
    assert "does not fit u16" in traced.fails("emit", "http_request", "70000", "1", "/")
    assert "no such event" in traced.fails("emit", "nosuch", "70000")
    for words in ("enable", "status", "reg --delete", "doctor"):
        done = traced.run(*words.split(), "http_requst", status=1)
        assert b"did you mean http_request?" in done.stdout + done.stderr

    status = traced.out("status")
    assert re.search(r"^user_events:http_request +ftrace +ftrace +2 +2 +0 +0$", status, re.MULTILINE)
    assert "recording, clock local, 1410 KiB" in status
    state = json.loads(traced.out("status", "--json", "http_request"))
    assert state["events"][0]["consumers"]["ftrace"] == {"recorded": 2, "filtered": 0, "lost": 0}
    assert state["buffer"]["entries"] == 2

    assert "user_events:http_request" in traced.out("list", "user_events:h*")
    assert "http_request" in traced.fails("reg", "--delete", "http_request")  # enabled: EBUSY
    traced.run("disable", "user_events:*")
    traced.run("reg", "--delete", "http_request")
    assert traced.out("list") == ""
    assert "no such event" in traced.fails("reg", "--delete", "http_request")
    assert "no such event" in traced.fails("enable", "http_request")
    assert "no such event" in traced.fails("status", "http_request")


def test_the_hint_of_emit_works_for_an_event_of_its_own(traced: Cli) -> None:
    """The event is gone again at once, so only a standing line can catch the next record."""
    for words in (["backup_begin"], ["backup_done u64 bytes", "1"]):
        name = words[0].split()[0]
        assert f"`utracefs enable --standing {name}` records it" in traced.fails("emit", *words)
        traced.run("enable", "--standing", name)
        traced.run("emit", *words)
    assert "backup_done: bytes=0x1 (1)" in traced.out("cat", "trace")


def test_an_event_without_fields(traced: Cli) -> None:
    traced.run("reg", "tick")
    traced.run("enable", "tick")
    traced.run("emit", "tick")
    assert "no consumer is attached" in traced.fails("emit", "tock")
    assert "tick:" in traced.out("cat", "trace")


def test_a_declaration_that_differs(traced: Cli) -> None:
    traced.run("reg", "ev u32 a")
    assert traced.fails("reg", "ev u64 a").startswith("utracefs: ev: ")
    assert traced.fails("emit", "ev u64 a", "1").startswith("utracefs: ev: ")


@pytest.mark.parametrize(
    ("declaration", "says"),
    [("ev long a", "use s64 or u64"), ("ev u32", "has no name"), ("a:b u32 c", "':'"), ("a/b", "'/'")],
)
def test_a_wrong_declaration_says_what_is_wrong(cli: Cli, declaration: str, says: str) -> None:
    for command in ("reg", "emit"):
        assert says in cli.fails(command, declaration)


@pytest.mark.parametrize(
    ("fields", "value", "says"),
    [
        ("s8 a", "-129", "field 'a': -129 does not fit s8"),
        ("u64 a", str(1 << 64), "does not fit u64"),
        ("struct bool a 1", "2", "field 'a': 2 does not fit bool"),
        ("struct float a 4", "1e39", "too large"),
        ("char[4] a", "abcde", "5 bytes, there is room for 4"),
        ("struct s a 4", "abcdef", "3 bytes, there is room for 4"),
        ("struct u8_2 a 2", "1,2,3", "takes exactly 2 numbers, not 3"),
        ("struct u8_2 a 2", "1,256", "256 does not fit u8"),
        ("__rel_loc char[] a", "x" * 65535, "it would need more than 65535 bytes"),
        ("__rel_loc u8[] a", "00" * (MAX_PAYLOAD - 3), "a record holds at most 65529"),
    ],
)
def test_a_value_for_which_there_is_no_room(cli: Cli, fields: str, value: str, says: str) -> None:
    assert says in cli.fails("emit", f"ev {fields}", value)


def test_all_kinds_of_values(traced: Cli) -> None:
    fields = "struct double d 8; struct bool b 1; struct s16_2 n 4; char[4] c; struct s x 2"
    fields += "; __data_loc char[] t; u8 u; __rel_loc u8[] y; __rel_loc char[] z"
    traced.run("reg", f"ev {fields}")
    traced.run("enable", "ev")
    traced.run("emit", "ev", "-1.5", "true", "[1, -2]", "ab", "0aff", "text", "0xff", "0102", "ü")
    exported = json.loads(traced.out("export", "--daemon").splitlines()[-1])["fields"]
    expected = {"d": -1.5, "b": True, "n": [1, -2], "c": "ab", "x": "0aff", "t": "text", "u": 255}
    assert exported == expected | {"y": "0102", "z": "ü"}


def test_names_with_their_system(traced: Cli) -> None:
    """As every other command takes and shows them."""
    traced.run("reg", "user_events:ev u32 a")
    traced.run("enable", "ev")
    traced.run("emit", "user_events:ev", "7")
    assert "ev: a=0x7 (7)" in traced.out("cat", "trace")
    traced.run("disable", "ev")
    traced.run("reg", "--delete", "user_events:ev")
    assert traced.out("list") == ""


def test_a_declaration_without_quotes(cli: Cli) -> None:
    said = cli.fails("reg", "x", "u32", "a", status=2)
    assert "a declaration is one word of the shell: utracefs reg 'x u32 a'" in said
