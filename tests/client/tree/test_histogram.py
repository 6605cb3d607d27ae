"""The text of hist files, as the kernel prints it."""

import pytest

from utracefs.tree.histogram import Entry, Histogram, parse_histograms

HEAD = "# event histogram\n#\n# trigger info: {}\n#\n\n"
TOTALS = "\nTotals:\n    Hits: {}\n    Entries: {}\n    Dropped: {}\n"


def one(trigger: str, *entries: str, signed: tuple[str, ...] = ()) -> list[Entry]:
    text = (
        HEAD.format(trigger) + "".join(f"{entry}\n" for entry in entries) + TOTALS.format(9, len(entries), 0)
    )
    (found,) = parse_histograms(text.encode("utf-8", "surrogateescape"), signed)
    assert (found.hits, found.dropped) == (9, 0)
    return list(found.entries)


def test_several_and_what_they_are() -> None:
    first = HEAD.format('hist:keys=pid:vals=hitcount:sort=hitcount:size=2048 if a ~ "x:keys=y [z" [paused]')
    second = HEAD.format("hist:name=n:keys=pid:vals=lat:sort=lat:size=128:nohitcount [active]")
    text = first + TOTALS.format(0, 0, 0) + "\n\n" + second + "{ pid:          1 }  lat:          7\n"
    text += TOTALS.format(3, 1, 2)
    assert parse_histograms(text.encode()) == [
        Histogram('hist:keys=pid:vals=hitcount:sort=hitcount:size=2048 if a ~ "x:keys=y [z"', True, (), 0, 0),
        Histogram(
            "hist:name=n:keys=pid:vals=lat:sort=lat:size=128:nohitcount",
            False,
            (Entry({"pid": 1}, {"lat": 7}),),
            3,
            2,
        ),
    ]


@pytest.mark.parametrize("text", [b"", b"# event histogram\n", b"junk", b"\xff\n"])
def test_no_histogram(text: bytes) -> None:
    assert parse_histograms(text) == []


def test_what_cannot_be_read_has_no_entries() -> None:
    (found,) = parse_histograms((HEAD.format("hist:nothing [active]") + TOTALS.format(1, 1, 0)).encode())
    assert found.entries == ()
    (found,) = parse_histograms(HEAD.format("hist:keys=a [active]").encode())
    assert (found.entries, found.hits) == ((), 0)


def string(text: str) -> str:
    return f"{text}{' ' * (50 - len(text.encode('utf-8', 'surrogateescape')))}"


@pytest.mark.parametrize(
    ("keys", "entry", "found"),
    [
        ("pid", "{ pid:         11 } hitcount:          2", {"pid": 11}),
        ("d", "{ d:       -1.5 } hitcount:          2", {"d": -1.5}),
        ("d", "{ d: 1.7976931348623157e+308 } hitcount:          2", {"d": 1.7976931348623157e308}),
        ("d", "{ d:       -inf } hitcount:          2", {"d": "-inf"}),
        ("pid.hex", "{ pid: ff } hitcount:          2", {"pid": 255}),
        ("lat.log2", "{ lat: ~ 2^13 } hitcount:          1", {"lat": "2^13"}),
        ("lat.log2", "{ lat: ~ 2^3  } hitcount:          1", {"lat": "2^3"}),
        ("lat.buckets=100", "{ lat: ~ 5000-5099 } hitcount:          1", {"lat": "5000-5099"}),
        ("name", f"{{ name: {string('gamma')} }} hitcount:          1", {"name": "gamma"}),
        ("name", f"{{ name: {string('')} }} hitcount:          1", {"name": ""}),
        ("name", f"{{ name: {string('12')} }} hitcount:          1", {"name": "12"}),
        ("name", f"{{ name: {'x' * 90} }} hitcount:          1", {"name": "x" * 90}),
        ("name", f"{{ name: {string(chr(0xDCFF))} }} hitcount:          1", {"name": "\udcff"}),
        ("name", f"{{ name: {string('two' + chr(10) + 'lines')} }} hitcount: 1", {"name": "two\nlines"}),
        (
            "name,b",
            f"{{ name: {string('a, b: 1 } hitcount: 2')}, b:          3 }} hitcount:          2",
            {"name": "a, b: 1 } hitcount: 2", "b": 3},
        ),
        ("à,b", f"{{ à: {string('ä ö à')}, b:          3 }} hitcount:          2", {"à": "ä ö à", "b": 3}),
        (
            "common_pid.execname",
            "{ common_pid: python3         [        54] } hitcount:          7",
            {"common_pid": "python3[54]"},
        ),
        ("id.syscall", f"{{ id: {'read':<30}[  0] }} hitcount:          7", {"id": "read[0]"}),
        (
            "ip.sym",
            f"{{ ip: [ffff8000] {'start_kernel':<45} }} hitcount:          7",
            {"ip": "[ffff8000] start_kernel"},
        ),
        ("common_cpu", "{ cpu:          1 } hitcount:          7", {"common_cpu": 1}),
        (
            "id,id.log2,id.buckets=10",
            "{ id:          3, id: ~ 2^2 , id: ~ 0-9 } hitcount:          7",
            {"id": 3, "id.log2": "2^2", "id.buckets=10": "0-9"},
        ),
        ("1", "{ :          1 } hitcount:          7", {"1": 1}),
        ("pid-1", "{ :         10 } hitcount:          7", {"pid-1": 10}),
        (
            "common_stacktrace",
            "{ common_stacktrace:\n         one+0x1\n         two\n} hitcount:          7",
            {"common_stacktrace": "one+0x1\ntwo"},
        ),
    ],
)
def test_keys(keys: str, entry: str, found: dict[str, object]) -> None:
    assert [one.keys for one in one(f"hist:keys={keys}:vals=hitcount:sort=x [active]", entry)] == [found]


@pytest.mark.parametrize(
    ("values", "entry", "found"),
    [
        ("hitcount,sz", " hitcount:          2  sz:         74", {"hitcount": 2, "sz": 74}),
        ("hitcount,sz.hex", " hitcount:          2  sz:         ff", {"hitcount": 2, "sz": 255}),
        (
            "hitcount,lat.percent,lat.graph",
            " hitcount:          2  lat (%):  92.60  lat: ####                ",
            {"hitcount": 2, "lat.percent": 92.6, "lat.graph": "####"},
        ),
        ("hitcount.percent", " hitcount (%):  14.28", {"hitcount.percent": 14.28}),
        ("hitcount.percent", " hitcount (%): [ERROR]", {"hitcount.percent": "[ERROR]"}),
        ("lat", "  lat:         70", {"lat": 70}),
        ("hitcount,lat+sz", " hitcount:          2", {"hitcount": 2}),
    ],
)
def test_values(values: str, entry: str, found: dict[str, object]) -> None:
    (parsed,) = one(f"hist:keys=pid:vals={values}:sort=x [active]", f"{{ pid:         11 }}{entry}")
    assert parsed.values == found


def test_signed_numbers() -> None:
    entry = "{ n: 18446744073709551613 } hitcount:          2  sz: 18446744073709551610"
    trigger = "hist:keys=n:vals=hitcount,sz:sort=x [active]"
    assert one(trigger, entry, signed=("n", "sz")) == [Entry({"n": -3}, {"hitcount": 2, "sz": -6})]
    assert one(trigger, entry) == [Entry({"n": 2**64 - 3}, {"hitcount": 2, "sz": 2**64 - 6})]


def test_what_actions_add_is_passed_over() -> None:
    entry = "{ pid:         11 } hitcount:          2\n\tmax:       5000  pid:         11  path: /b"
    trigger = "hist:keys=pid:vals=hitcount:m=lat:sort=x:size=2048:onmax($m).save(pid,path) [active]"
    assert one(trigger, entry, entry) == [Entry({"pid": 11}, {"hitcount": 2})] * 2
