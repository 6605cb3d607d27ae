from __future__ import annotations

import errno

import pytest

from tests.daemon.consumers.ftrace.histograms import defined
from utracefs_protocol.hist.errors import HistError
from utracefsd.consumers.ftrace.hist.definition import SortKey


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (b"keys=id", b"keys=id:vals=hitcount:sort=hitcount:size=2048"),
        (b"vals=sz,big.hex:key=id", b"keys=id:vals=hitcount,sz,big.hex:sort=hitcount:size=2048"),
        (b"keys=id:vals=hitcount", b"keys=id:vals=hitcount:sort=hitcount:size=2048"),
        (
            b"keys=id:vals=hitcount,hitcount.percent",
            b"keys=id:vals=hitcount,hitcount.percent:sort=hitcount:size=2048",
        ),
        (b"keys=id:vals=sz:NOHC", b"keys=id:vals=sz:sort=hitcount:size=2048:nohitcount"),
        (
            b"keys=sz.log2,name:sort=sz.descending,hitcount:size=100",
            b"keys=sz.log2,name:vals=hitcount:sort=sz.log2.descending,hitcount:size=128",
        ),
        (
            b"keys=common_timestamp.usecs:clock=mono",
            b"keys=common_timestamp.usecs:vals=hitcount:sort=hitcount:size=2048:clock=mono",
        ),
        (b"keys=id:clock=mono", b"keys=id:vals=hitcount:sort=hitcount:size=2048"),
        (
            b"name=foo:keys=id:x=sz,y=big*2:z=small",
            b"name=foo:keys=id:vals=hitcount:x=sz,y=big*2,z=small:sort=hitcount:size=2048",
        ),
        (b"keys=sz.buckets=5", b"keys=sz.buckets=5:vals=hitcount:sort=hitcount:size=2048"),
        (b"keys=id:vals=sz:sort=sz", b"keys=id:vals=hitcount,sz:sort=sz:size=2048"),
    ],
)
def test_canonical_text(text: bytes, shown: bytes) -> None:
    assert defined(text).text() == b"hist:" + shown


def test_layout_of_keys() -> None:
    definition = defined(b"keys=name,small,big")
    assert [(key.offset, key.size) for key in definition.keys] == [(0, 16), (16, 8), (24, 8)]
    assert definition.key_size == 32
    assert defined(b"keys=msg,common_stacktrace").key_size == 504


def test_sort_keys() -> None:
    definition = defined(b"keys=id,sv:vals=sz:sort=sv.descending,sz.ascending")
    assert definition.sort == (SortKey(3, descending=True), SortKey(1))
    assert definition.column(definition.sort[0]).shown_name() == b"sv"


@pytest.mark.parametrize(
    ("text", "number", "entries"),
    [
        (b"keys=id,sv,big,sz", errno.EINVAL, []),
        (b"keys=msg,msg", errno.EINVAL, []),
        (b"keys=id:vals=sz,small,big", errno.EINVAL, []),
        (b"keys=id:vals=sz,small,hitcount,big", errno.EINVAL, []),
        (b"keys=id:vals=name", errno.EINVAL, [("String type can not be an operand in expression", 18)]),
        (b"keys=id:vals=sz.log2", errno.EINVAL, [("Invalid field modifier", 18)]),
        (b"keys=id:vals=sz.sym", errno.EINVAL, [("Invalid field modifier", 18)]),
        (b"keys=id:vals=common_stacktrace", errno.EINVAL, [("Invalid field modifier", 18)]),
        (b"keys=id.percent", errno.EINVAL, [("Invalid field modifier", 13)]),
        (b"keys=id:x=sz.log2", errno.EINVAL, [("Invalid field modifier", 15)]),
        (b"keys=id:x=sz:x=big", errno.EINVAL, [("Variable already defined", 13)]),
        (b"keys=id:x=sz,q", errno.EINVAL, [("Malformed assignment", 18)]),
        (b"keys=id:nohitcount", errno.ENOENT, [("Non-hitcount value is required for 'nohitcount'", 0)]),
        (b"keys=id:sort=sz", errno.EINVAL, [("Sort field must be a key or a val", 18)]),
        (b"keys=id:sort=id.up", errno.EINVAL, [("Invalid sort modifier", 21)]),
        (b"keys=id:sort=,id", errno.EINVAL, [("Empty sort field", 13)]),
        (b"keys=id:sort=.descending", errno.EINVAL, [("Empty sort field", 13)]),
        (b"keys=id:sort=id,", errno.EINVAL, [("Empty sort field", 13)]),
        (b"keys=id:sort=id,hitcount,id", errno.EINVAL, [("Too many sort fields (Max = 2)", 13)]),
        (b"keys=", errno.EINVAL, [("Empty assignment", 5)]),
    ],
)
def test_refused(text: bytes, number: int, entries: list[tuple[str, int]]) -> None:
    with pytest.raises(HistError) as caught:
        defined(text)
    assert (caught.value.errno, list(caught.value.entries)) == (number, entries)


def test_more_variables_than_there_may_be() -> None:
    names = b",".join(b"v%d=id" % n for n in range(16))
    assert len(defined(b"keys=id:" + names).variables) == 16
    with pytest.raises(HistError) as caught:
        defined(b"keys=id:%s:more=id" % names)
    assert caught.value.entries[0][0] == "Too many variables defined"


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (b"keys=id", b"key=id:vals=hitcount", True),
        (b"keys=id", b"keys=id:size=100", True),
        (b"keys=id", b"keys=id:sort=hitcount", True),
        (b"keys=id", b"keys=id:pause", True),
        (b"keys=id", b"keys=id.hex", False),
        (b"keys=id", b"keys=id:vals=sz", False),
        (b"keys=id,sz", b"keys=sz,id", False),
        (b"keys=id", b"keys=id:sort=id", False),
        (b"keys=id", b"keys=id:x=sz", False),
        (b"keys=id.buckets=2", b"keys=id.buckets=3", False),
        (b"keys=id:vals=sz+small", b"keys=id:vals=sz-small", False),
        (b"keys=id:x=sz", b"keys=id:y=sz", False),
        (b"keys=id:x=sz:onmax($x).save(sz)", b"keys=id:x=sz", False),
    ],
)
def test_identity(one: bytes, other: bytes, same: bool) -> None:
    assert (defined(one).identity() == defined(other).identity()) is same
