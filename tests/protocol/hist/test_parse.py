from __future__ import annotations

import errno

import pytest

from utracefs_protocol.hist.errors import HistError, Log
from utracefs_protocol.hist.parse import Command, Parts, parse_parts, split_filter


def parts(text: bytes) -> Parts:
    return parse_parts(text, Log(b"hist:" + text))


def refused(text: bytes) -> HistError:
    with pytest.raises(HistError) as caught:
        parts(text)
    return caught.value


def test_defaults() -> None:
    found = parts(b"keys=a,b")
    assert found == Parts(
        b"a,b", None, None, None, b"global", 11, False, Command.NONE, assignments=(), actions=()
    )


def test_all_parts_in_any_order() -> None:
    found = parts(
        b"x=a:size=100:sort=a.descending:values=b:name=n:onmatch(s.e).t(a):NOHC"
        b":clock= mono :key=a:y=b,z=c:pause"
    )
    assert found == Parts(
        keys=b"a",
        values=b"b",
        sort=b"a.descending",
        name=b"name=n",
        clock=b"mono",
        bits=7,
        no_hitcount=True,
        command=Command.PAUSE,
        assignments=(b"x=a", b"y=b,z=c"),
        actions=(b"onmatch(s.e).t(a)",),
    )


@pytest.mark.parametrize(
    ("size", "bits"), [(b"65", 7), (b"128", 7), (b"129", 8), (b"0x800", 11), (b"131072", 17), (b"+200\n", 8)]
)
def test_sizes(size: bytes, bits: int) -> None:
    assert parts(b"keys=a:size=" + size).bits == bits


@pytest.mark.parametrize("size", [b"0", b"64", b"131073", b"262144", b"x", b"-1", b"18446744073709551615"])
def test_bad_sizes(size: bytes) -> None:
    error = refused(b"keys=a:size=" + size)
    assert (error.errno, error.entries) == (errno.EINVAL, ())


def test_a_size_that_is_no_number_of_64_bits() -> None:
    assert refused(b"keys=a:size=18446744073709551616").errno == errno.ERANGE


@pytest.mark.parametrize("text", [b"", b"vals=a", b"keys=a:foo", b"keys=a::vals=b", b"keys=a:onfoo(x).y()"])
def test_refused_without_a_message(text: bytes) -> None:
    error = refused(text)
    assert (error.errno, error.entries) == (errno.EINVAL, ())


@pytest.mark.parametrize("text", [b"keys=", b"keys=a:x=", b"keys=a:vals="])
def test_empty_assignments(text: bytes) -> None:
    ((message, position),) = refused(text).entries
    assert message == "Empty assignment"
    assert position == 5 + text.rfind(b":") + 1


def test_too_many() -> None:
    many = b"keys=a" + b"".join(b":v%d=a" % i for i in range(16))
    assert len(parts(many).assignments) == 16
    assert refused(many + b":one=a").entries == (("Too many variables defined", 5 + len(many) + 1),)
    actions = b"keys=a" + b":onmax($x).save(a)" * 8
    assert len(parts(actions).actions) == 8
    assert refused(actions + b":onmax($x).save(a)").entries == ()


@pytest.mark.parametrize("text", [b"if a", b"keys=a if", b"keys=a if "])
def test_if_alone(text: bytes) -> None:
    with pytest.raises(HistError) as caught:
        split_filter(text, Log(b""))
    assert caught.value.errno == errno.EINVAL


def test_positions_are_those_of_the_first_occurrence() -> None:
    log = Log(b"hist:keys=id:vals=id")
    log.add("first", b"id")
    error = log.fault("second", b"nowhere")
    assert isinstance(error, HistError)
    assert error.errno == errno.EINVAL
    assert error.entries == (("first", 10), ("second", 0))
    assert error.text == "second: 'nowhere'"


def test_nothing_to_point_at() -> None:
    assert Log(b"hist:keys=id").fault("all of it", errno=errno.ENOENT).entries == (("all of it", 0),)


def test_refused_without_an_entry_of_its_own() -> None:
    log = Log(b"hist:keys=id")
    assert log.refused("no").entries == ()
    log.add("before")
    assert log.refused("no", errno.ENOMEM).entries == (("before", 0),)
    assert log.refused("no", errno.ENOMEM).errno == errno.ENOMEM
