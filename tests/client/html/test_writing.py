"""The page, as a browser shows it: headless Chromium is the judge. The content of the columns:
test_columns.py."""

from __future__ import annotations

import bisect
import io
import math
import operator
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import utracefs
from tests.client.export.example import ROWS, TEXTS, write
from tests.client.html.chromium import Chromium, Page
from tests.client.html.example import MANY, page_of, write_many
from tests.client.recordings.events import Events
from tests.client.recordings.perf_data import example as perf
from tests.client.recordings.test_recording import break_first_page
from tests.client.recordings.trace_dat.example import CPU0, pages
from tests.client.recordings.trace_dat.example import write as write_pages
from utracefs.html import writing
from utracefs.recordings.recording import Record
from utracefs_protocol.errors import TraceError

SETTLED = (
    "document.getElementById('cards').getAttribute('aria-busy') === 'false'"
    " && !!document.body.dataset.complete"
)
LANES_BOX = (
    "((b) => [b.left, b.top, b.width, b.height])"
    "(document.getElementById('lanes-canvas').getBoundingClientRect())"
)
COLOURS = """((canvas) => {
    const {data} = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    const seen = new Set();
    for (let i = 0; i < data.length; i += 4)
        if (data[i + 3] === 255) seen.add([data[i], data[i + 1], data[i + 2]].join());
    return [...seen];
})(document.getElementById("rates"))"""

PERCENTILES = (50, 90, 95, 99, 99.9)


def show(page: Page) -> Page:
    page.until("document.body?.dataset.complete", "true")
    page.until(SETTLED)
    return page


def check_quiet(page: Page, path: Path) -> None:
    """Nothing was fetched but the page, nothing logged."""
    assert page.requests == [path.as_uri()]
    assert page.errors == []


@pytest.fixture
def page(chromium: Chromium, many: Path) -> Iterator[Page]:
    path = page_of(many)
    with chromium.page(path) as shown:
        yield show(shown)
        check_quiet(shown, path)


def view(page: Page) -> tuple[float, float]:
    """The visible range, in ns after the first record."""
    begin, end = page.value("(({from, to}) => [from, to])(document.getElementById('timeline').dataset)")
    return float(begin), float(end)


def in_view(page: Page) -> int:
    return int(page.text("#records-count").split()[0].replace(",", ""))


def expected_in_view(page: Page, records: list[Record]) -> int:
    begin, end = view(page)
    return sum(begin <= record.time_ns - records[0].time_ns < end for record in records)


def settle(page: Page) -> None:
    """After a change: the debounced statistics are there."""
    page.value("new Promise((done) => setTimeout(done, 150))")
    page.until(SETTLED)


def escaped(text: str) -> str:
    """As the page shows it, in its texts of the example."""

    def of(found: re.Match[str]) -> str:
        code = ord(found[0])
        if 0xDC80 <= code <= 0xDCFF:
            return f"\\x{code & 0xFF:02x}"
        named = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
        return named.get(found[0]) or (f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}")

    return re.sub("[\x00-\x1f\x7f-\x9f\u2028\udc80-\udcff]", of, text)


def shown(value: object) -> str:
    return value.hex() if isinstance(value, bytes) else escaped(str(value))


def test_every_field_of_every_record(chromium: Chromium, tmp_path: Path) -> None:
    path = page_of(write(tmp_path / "trace.dat", lost=3))
    with utracefs.open(tmp_path / "trace.dat") as recording:
        expected = list(recording)
    with chromium.page(path) as page:
        show(page)
        page.value("document.getElementById('grid').focus()")
        page.key("Home")
        for number, record in enumerate(expected):
            page.until("document.querySelector('[aria-selected=true]')?.dataset.row", str(number))
            page.until("document.querySelector('#record td') !== null")
            page.value("new Promise(requestAnimationFrame)")
            names, values = page.texts("#record th"), page.texts("#record td")
            found = dict(zip(names, values, strict=True))
            assert found["event"] == f"{record.system}:{record.name}"
            assert found["time"] == f"{record.time_ns // 10**9}.{record.time_ns % 10**9:09d}"
            assert found["thread"] == f"{escaped(record.comm)}-{record.tid}"
            fields = {name: shown(value) for name, value in record.fields.items()}
            assert values[len(values) - len(fields) :] == list(fields.values())
            cells = page.texts("[aria-selected=true] > *")
            assert (cells[1], cells[3]) == (str(record.cpu), record.name)
            lost = "LOST 3 " if number == 1 else ""
            assert cells[4].rstrip() == (lost + "  ".join(f"{k}={v}" for k, v in fields.items())).rstrip()
            page.key("ArrowDown")
        assert len(ROWS) == len(expected) and TEXTS[2].startswith("</script>")
        check_quiet(page, path)


@pytest.mark.parametrize(
    "name",
    [
        "</script><script>throw 1</script>",
        "<img src=x onerror=alert(1)>",
        'a"b\n&amp;',
        "gr\udcff\u202e",
        "{{data}}",
    ],
)
def test_a_recording_is_text_wherever_it_is_shown(chromium: Chromium, tmp_path: Path, name: str) -> None:
    events = Events(7, b"one __rel_loc char[] text")
    data = name.encode("utf-8", "surrogateescape")
    formats = events.formats()[0].replace(b"one", b"<b>&one", 1)
    path = write_pages(
        tmp_path / f"{name.replace('/', '')}.dat",
        [pages([(1000, events.entry(7, 5, name)), (2000, events.entry(7, 5, name))])],
        formats={b"<i>": [formats]},
        cmdlines=b"5 %s\n" % data.replace(b"\n", b""),
    )
    page_path = page_of(path)
    with chromium.page(page_path) as page:
        show(page)
        page.key(".")
        page.until("document.querySelector('#record td') !== null")
        assert escaped(name).replace("\u202e", "\\u202e") in page.texts("#record td")
        assert page.texts("#events .name") == ["<b>&one"]
        assert page.value("document.querySelectorAll('img, b, i, #record script').length") == 0
        check_quiet(page, page_path)


def nearest_rank(values: list[int], percent: float) -> int:
    ordered = sorted(values)
    return ordered[max(math.ceil(round(percent * 10) * len(ordered) / 1000), 1) - 1]


def check_cards(page: Page, records: list[Record], event: str) -> None:
    """All statistics of the fields of an event, against Python's."""
    own = [record for record in records if record.name == event]
    for name, value in own[0].fields.items():
        card = f'.card[data-field="{name}"]'
        values = [record.fields[name] for record in own]
        if isinstance(value, int):
            numbers = [v for v in values if isinstance(v, int)]
            assert page.text(f"{card} h3 .quiet") == f"{len(numbers):,} values"
            found = dict(zip(page.texts(f"{card} dt"), page.texts(f"{card} dd"), strict=True))
            expected = {f"p{p}": f"{nearest_rank(numbers, p):,}" for p in PERCENTILES}
            expected |= {"min": f"{min(numbers):,}", "max": f"{max(numbers):,}"}
            mean = found.pop("mean")
            assert found == expected, name
            if abs(sum(numbers) / len(numbers)) < 1e6:
                assert float(mean.replace(",", "")) == pytest.approx(sum(numbers) / len(numbers), rel=1e-3)
        else:
            counts = Counter(map(str, values))
            assert page.text(f"{card} h3 .quiet") == f"{len(counts):,} different"
            top = [int(text.split()[0].replace(",", "")) for text in page.texts(f"{card} td:last-child")]
            assert top == sorted(counts.values(), reverse=True)[:8]
            texts = page.texts(f"{card} td:first-child")
            assert [counts[text] for text in texts] == top


def test_statistics(page: Page, records: list[Record]) -> None:
    check_cards(page, records, "http_request")
    for event in ("queue_length", "big"):
        page.value(
            f"((s) => {{ s.value = [...s.options].find((o) => o.text === '{event}').value;"
            " s.dispatchEvent(new Event('change')); })(document.getElementById('fields-event'))"
        )
        settle(page)
        check_cards(page, records, event)


def test_statistics_are_of_what_is_in_view_and_meets_the_search(page: Page, records: list[Record]) -> None:
    page.search("status>=500")
    page.key("Escape")
    for key in "ww":
        page.key(key)
    settle(page)
    begin, end = view(page)
    chosen = [
        record
        for record in records
        if begin <= record.time_ns - records[0].time_ns < end
        if record.name == "http_request" and int(record.fields["status"]) >= 500
    ]
    assert 10 < len(chosen) < MANY / 20
    assert in_view(page) == len(chosen)
    check_cards(page, chosen, "http_request")


def field(name: str, compare: Callable[[Any, Any], bool], value: Any) -> Callable[[Record], bool]:
    return lambda record: name in record.fields and compare(record.fields[name], value)


BIG = 2**63 + 4711
SEARCHES: list[tuple[str, Callable[[Record], bool]]] = [
    ("", lambda r: True),
    ("status=404", field("status", operator.eq, 404)),
    ("status!=200", field("status", operator.ne, 200)),
    ("usec<100", field("usec", operator.lt, 100)),
    (
        "usec<=100 -status=200",
        lambda r: r.name == "http_request" and int(r.fields["usec"]) <= 100 and r.fields["status"] != 200,
    ),
    ("length>-2", field("length", operator.gt, -2)),
    ("change<-1000000000", field("change", operator.lt, -(10**9))),
    (f"key={BIG}", field("key", operator.eq, BIG)),
    (f"key>{BIG}", field("key", operator.gt, BIG)),
    (f"wide<{2**63}", field("wide", operator.lt, 2**63)),
    ("path~ORDERS", lambda r: "orders" in str(r.fields.get("path", ""))),
    ("path=/api/v1/users/17", field("path", operator.eq, "/api/v1/users/17")),
    ('"users/17"', lambda r: "users/17" in str(r.fields.get("path", ""))),
    ("event=big", lambda r: r.name == "big"),
    ("-event=big", lambda r: r.name != "big"),
    ("event~user_events:queue", lambda r: r.name == "queue_length"),
    ("comm~worker-1", lambda r: "worker-1" in r.comm),
    ("tid=1003 cpu=2", lambda r: r.tid == 1003 and r.cpu == 2),
    ("pid>=1010", lambda r: r.pid >= 1010),
    ("time>=1000.05 time<1000.1", lambda r: 1000_050_000_000 <= r.time_ns < 1000_100_000_000),
    (
        "503",
        lambda r: (
            503 in r.fields.values() or any("503" in str(v) for v in r.fields.values() if isinstance(v, str))
        ),
    ),
    ("no such text", lambda r: False),
]


def test_search(page: Page, records: list[Record]) -> None:
    for text, wanted in SEARCHES:
        found = [n for n, record in enumerate(records) if wanted(record)]
        page.search(text)
        assert page.text("#search-result") == (f"{len(found):,} of {MANY:,}" if text else ""), text
        assert in_view(page) == len(found), text
        shown = page.value("[...document.querySelectorAll('#grid-rows > *')].map((e) => +e.dataset.row)")
        first = bisect.bisect_left(found, shown[0]) if shown else 0  # it stays at the record that was there
        assert shown == found[first : first + len(shown)] and len(shown) >= min(len(found), 10), text


def test_a_search_that_makes_no_sense(page: Page) -> None:
    for text, says in {
        "status>>5": "status is a number, >5 is not",
        "nosuch=1": "no event has a field nosuch",
        "status=x": "status is a number, x is not",
        "path<x": "path is text: = != or ~ (contains), not <",
        "status=": "status = what? Without a blank: status=value",
        "=5": "what is to be = 5? field=value",
        "time>soon": "time is in seconds, as the table has it; not soon",
    }.items():
        page.search(text)
        page.until("document.getElementById('search-result').textContent", says)
        assert page.value("document.getElementById('search').getAttribute('aria-invalid')") == "true", text
        page.search("status=404")
        assert page.value("document.getElementById('search').getAttribute('aria-invalid')") is None, text


def test_an_empty_table_says_why(page: Page) -> None:
    def said() -> str:
        return str(
            page.value("((p) => p.hidden ? '' : p.textContent)(document.getElementById('grid-empty'))")
        )

    assert said() == ""
    page.search("nosuchword")
    page.key("Escape")
    settle(page)
    assert said() == "No record meets the search and the events that are ticked."
    assert page.text("#rate-label") == "records/s"
    page.search("")
    settle(page)
    assert said() == "" and "≤" in page.text("#rate-label")


def test_in_a_narrow_window_fields_and_thread_ids_can_be_read(page: Page) -> None:
    for width in (1000, 640):
        page.resize(width, 700)
        settle(page)
        assert page.value("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
        cells = "document.querySelector('#grid-rows [role=row]').children"
        assert page.value(f"{cells}[4].clientWidth") > 100
        right = "getBoundingClientRect().right"
        assert page.value(f"{cells}[2].lastChild.{right} <= {cells}[2].{right}")


def test_fields_are_of_an_event_that_was_found(page: Page) -> None:
    page.search("length>=0")
    page.key("Escape")
    assert page.value("document.getElementById('search').value") == "length>=0"
    settle(page)
    chosen = "document.getElementById('fields-event').selectedOptions[0].text"
    assert page.value(chosen) == "queue_length"
    page.value(
        "((s) => { s.selectedIndex = [...s.options].findIndex((o) => o.text === 'big');"
        " s.dispatchEvent(new Event('change')); })(document.getElementById('fields-event'))"
    )
    settle(page)
    assert page.value(chosen) == "big" and page.texts(".card h3 .quiet") == ["0 values", "0 values"]


def test_events_are_hidden_and_shown(page: Page, records: list[Record]) -> None:
    counts = Counter(record.name for record in records)
    assert page.texts("#events .name") == [name for name, _ in counts.most_common()]
    assert page.texts("#events .count") == [f"{n:,}" for _, n in counts.most_common()]
    page.click("#events li:nth-child(1) input")
    page.until(
        "document.getElementById('records-count').textContent", f"{MANY - counts['http_request']:,} in view"
    )
    page.click("#events-all")
    page.until("document.getElementById('records-count').textContent", f"{MANY:,} in view")


def test_zoom_and_pan(page: Page, records: list[Record]) -> None:
    whole = view(page)
    assert in_view(page) == MANY

    before = whole

    def check(narrower: bool | None) -> None:
        nonlocal before
        begin, end = view(page)
        span, was = end - begin, before[1] - before[0]
        if narrower is None:
            assert span == pytest.approx(was) and begin != before[0]
        else:
            assert (span < was) is narrower
        assert in_view(page) == expected_in_view(page, records)
        before = begin, end

    page.key("w")
    check(True)
    page.key("+")
    check(True)
    page.key("d")
    check(None)
    page.key("s")
    check(False)
    page.value("document.getElementById('rates').focus()")
    page.key("ArrowLeft")
    check(None)
    box = page.value(LANES_BOX)
    x, y = box[0] + box[2] / 2, box[1] + 30
    page.mouse("mouseWheel", x, y, deltaX=0, deltaY=-200)
    page.until(f"document.getElementById('timeline').dataset.to !== '{before[1]!r}'")
    check(True)
    page.mouse("mouseWheel", x, y, deltaX=0, deltaY=100, modifiers=8)
    page.until(f"Number(document.getElementById('timeline').dataset.to) !== {before[1]!r}")
    check(None)
    page.drag((x, y), (x - 150, y))
    check(None)
    page.drag((x, y), (x + 200, y), modifiers=8)
    check(True)
    touches = [
        ("touchStart", [(x - 20, y), (x + 20, y)]),
        ("touchMove", [(x - 60, y), (x + 60, y)]),
        ("touchMove", [(x - 120, y), (x + 120, y)]),
        ("touchEnd", []),
    ]
    page.call("Emulation.setTouchEmulationEnabled", enabled=True, maxTouchPoints=2)
    for kind, points in touches:
        page.call(
            "Input.dispatchTouchEvent", type=kind, touchPoints=[{"x": px, "y": py} for px, py in points]
        )
    check(True)
    for button in ("#zoom-out", "#pan-left"):
        page.click(button)
    assert in_view(page) == expected_in_view(page, records)
    page.key("0")
    assert view(page) == whole


def test_zooming_far_in_ends_at_single_records(page: Page, records: list[Record]) -> None:
    for _ in range(60):
        page.key("w")
    begin, end = view(page)
    assert end - begin == pytest.approx(100, abs=1)
    assert in_view(page) == expected_in_view(page, records) <= 1


def test_what_is_drawn(page: Page) -> None:
    """Counts of the tip are those of the bins that are drawn; a click chooses a record."""
    box = page.value(LANES_BOX)
    x, y = box[0] + box[2] / 2, box[1] + 30
    page.mouse("mouseMoved", x, y)
    page.until("document.getElementById('tip').hidden", False)
    assert page.text("#tip").startswith("worker-1-1001, +")
    page.drag((x, y), (x, y))
    page.until("document.querySelector('[aria-selected=true]') !== null")
    assert "worker-1-1001" in page.texts("#record td")
    assert {"59,113,214", "20,154,134"} <= set(page.value(COLOURS))


def test_lanes_are_those_of_threads_that_were_found(page: Page, records: list[Record]) -> None:
    page.search("comm~worker-1 status=500")
    found = Counter(r.tid for r in records if "worker-1" in r.comm and r.fields.get("status") == 500)
    page.until("document.querySelectorAll('button.lane').length", len(found))
    assert page.texts("button.lane .name") == [f"worker-{tid - 1000}-{tid}" for tid in sorted(found)]
    assert page.texts("button.lane .count") == [str(found[tid]) for tid in sorted(found)]
    lanes = (
        "((e) => [e.scrollHeight - e.clientHeight, e.scrollWidth - e.clientWidth])"
        "(document.getElementById('lanes'))"
    )
    assert page.value(lanes) == [0, 0]
    page.click("button.lane")
    page.until("document.querySelectorAll('button.lane').length", 1)
    page.search("")
    page.until("document.querySelectorAll('button.lane').length", len({r.tid for r in records}))


def test_losses(page: Page, records: list[Record], many: Path) -> None:
    places = [record for record in records if record.lost]
    told = sum(record.lost for record in places if record.lost > 0)
    assert places
    assert page.text("#losses p.loss").startswith(f"{told} records")
    assert page.text("#losses p.loss").endswith(f" at {len(places)} places")
    assert page.texts("#losses button .loss") == [
        str(record.lost) if record.lost > 0 else "not counted" for record in places
    ]
    page.key("l")
    page.until(
        f"document.querySelector('[aria-selected=true]')?.dataset.row === '{records.index(places[0])}'"
    )
    begin, end = view(page)
    assert begin < places[0].time_ns - records[0].time_ns < end
    assert "lost before" in page.texts("#record th")
    assert page.texts("#losses tr") == ["cpu 0, overrun77"]
    assert page.texts("#facts .lost dd") == [f"≥ {told}" if any(r.lost < 0 for r in places) else f"{told}"]


def test_by_keyboard_and_for_screen_readers(page: Page) -> None:
    for _ in range(40):
        page.key("Tab")
        if page.value("document.activeElement.id") == "grid":
            break
    assert page.value("document.activeElement.id") == "grid"
    page.key("End")
    page.until("document.querySelector('[aria-selected=true]')?.dataset.row", str(MANY - 1))
    assert page.value("document.getElementById('grid').getAttribute('aria-rowcount')") == str(MANY + 1)
    assert (
        page.value("document.getElementById('grid').getAttribute('aria-activedescendant')")
        == f"row-{MANY - 1}"
    )
    page.key("PageUp")
    page.key("Home")
    page.until("document.querySelector('[aria-selected=true]')?.dataset.row", "0")
    names = page.call("Accessibility.getFullAXTree")["nodes"]
    unnamed = [
        node["role"]["value"]
        for node in names
        if node.get("role", {}).get("value")
        in ("button", "checkbox", "combobox", "searchbox", "img", "image", "grid")
        if not node.get("name", {}).get("value")
    ]
    assert not unnamed
    page.key("?")
    page.until("document.getElementById('help').open")
    page.key("Escape")
    page.until("document.getElementById('help').open", False)


def test_colours(chromium: Chromium, many: Path) -> None:
    back = "getComputedStyle(document.body).backgroundColor"
    with chromium.page(page_of(many), dark=True) as page:
        show(page)
        assert page.value(back) == "rgb(18, 21, 26)"
        page.click("#theme")
        page.click("#theme")
        assert page.value(back) == "rgb(246, 247, 249)"


def test_a_small_window(chromium: Chromium, many: Path) -> None:
    with chromium.page(page_of(many), size=(390, 800)) as page:
        show(page)
        assert page.value("document.documentElement.scrollWidth") <= 390
        assert page.errors == []


def test_the_page_may_reach_nothing(chromium: Chromium, many: Path) -> None:
    with chromium.page(page_of(many)) as page:
        show(page)
        for what in ("fetch('data:,x')", "fetch('http://127.0.0.1:9/')", f"fetch('{many.as_uri()}')"):
            assert page.value(f"{what}.then(() => 'came', () => 'refused')") == "refused"
        image = (
            "new Promise((done) => { const i = new Image();"
            " i.onload = () => done(1); i.onerror = () => done(0);"
            " i.src = 'data:image/gif;base64,R0lGODlhAQABAAAAACw='; })"
        )
        assert page.value(image) == 0
        page.value(
            "document.body.append(Object.assign(document.createElement('script'), {text: 'window.ran = 1'}))"
        )
        assert page.value("window.ran") is None


def test_a_perf_data_with_processes(chromium: Chromium, tmp_path: Path) -> None:
    events = Events(7, b"one u32 n; u64 m")
    samples = [perf.comm(40, 41, b"first"), perf.comm(40, 42, b"second")]
    samples += [perf.sample(1000 + n, n % 2, 40, 41 + n % 2, events.entry(7, 41, n, 0)) for n in range(10)]
    samples.append(perf.sample(3000, 0, 40, 41, events.entry(7, 41, 1, 0)[:-8]))
    path = page_of(perf.write(tmp_path / "perf.data", events, samples))
    with chromium.page(path) as page:
        show(page)
        assert page.texts(".lane.process") == ["process 40"]
        assert page.texts("button.lane .name") == ["first-41", "second-42"]
        assert page.texts("#events .name") == ["one", "one (short)"]
        page.click("button.lane:last-child")
        page.until("document.getElementById('search-result').textContent", "5 of 11")
        check_quiet(page, path)


@pytest.mark.parametrize("records", [0, 1])
def test_few_records(chromium: Chromium, tmp_path: Path, records: int) -> None:
    events = Events(7, b"one u32 n")
    made = [(5000, events.entry(7, 1, 9))][:records]
    file = write_pages(tmp_path / "t.dat", [pages(made)], formats={b"user_events": events.formats()})
    with chromium.page(page_of(file)) as page:
        show(page)
        assert page.texts("#facts dd")[0] == str(records)
        for key in "wwdsa0.,l":
            page.key(key)
        page.search("n=9" if records else "x")
        assert in_view(page) == records
        assert page.errors == []


def test_times_of_any_size(chromium: Chromium, tmp_path: Path) -> None:
    """Further apart than a double has nanoseconds for."""
    events = Events(7, b"one u32 n")
    times = [3, 2**62 + 1, 2**62 + 2, 2**63 - 3]
    file = write_pages(
        tmp_path / "t.dat",
        [[page for time in times for page in pages([(time, events.entry(7, 1, 9))])]],
        formats={b"user_events": events.formats()},
    )
    with chromium.page(page_of(file)) as page:
        show(page)
        found = page.texts("#grid-rows > * > :first-child")
        assert found == [f"{time // 10**9}.{time % 10**9:09d}" for time in times]


def test_a_broken_recording_is_shown_up_to_there_and_says_so(chromium: Chromium, tmp_path: Path) -> None:
    file = break_first_page(write_pages(tmp_path / "trace.dat", [pages(CPU0)]))
    with pytest.raises(TraceError, match="broken: cpu 0"):
        page_of(file)
    with chromium.page(file.with_suffix(".html")) as page:
        show(page)
        assert "broken: cpu 0" in page.text("#notice")
        assert page.texts("#facts dd")[0] == "1"


def test_events_of_one_name_in_two_systems(chromium: Chromium, tmp_path: Path) -> None:
    one, other = Events(7, b"one u32 n"), Events(8, b"one u32 n")
    file = write_pages(
        tmp_path / "t.dat",
        [pages([(1, one.entry(7, 1, 5)), (2, other.entry(8, 1, 5)), (3, other.entry(8, 1, 5))])],
        formats={b"a": one.formats(), b"b": other.formats()},
        trace_clock=b"local [counter]",
    )
    with chromium.page(page_of(file)) as page:
        show(page)
        assert page.texts("#events .name") == ["b:one", "a:one"]
        assert page.texts("#facts dd")[1] == "2 ticks"
        page.search("event=a:one")
        assert in_view(page) == 1


def test_progress_is_reported_to_the_end(many: Path) -> None:
    told: list[float] = []
    with utracefs.open(many) as recording:
        writing.write_html(recording, io.BytesIO(), progress=told.append)
    assert told == sorted(told) and told[-1] == 1.0 and len(told) > 5


def test_a_selection_is_reported(chromium: Chromium, many: Path) -> None:
    with chromium.page(page_of(many, events=["big"], cpus=[1])) as page:
        show(page)
        assert page.text("#notice") == "A part of the recording: event big; cpu 1"


WATCH = """
window.longTasks = [];
new PerformanceObserver((list) => longTasks.push(...list.getEntries().map((e) => e.duration)))
	.observe({type: "longtask", buffered: true});
"""


def test_a_million_records(chromium: Chromium, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    count = 1_000_000
    path = page_of(write_many(tmp_path / "trace.dat", count // 5, times=5))
    size = path.stat().st_size
    begin = time.perf_counter()
    with chromium.page(path, before=WATCH) as page:
        page.until("document.body?.dataset.ready", "true")
        ready_s = time.perf_counter() - begin
        show(page)
        opening = page.value("Math.max(0, ...longTasks)")
        page.value("longTasks.length = 0")
        for key in "wwwddssaa0":
            page.key(key)
            page.value("new Promise(requestAnimationFrame)")
        page.search("status>=500 path~orders")
        settle(page)
        page.value("document.getElementById('grid').focus()")
        page.key("End")
        page.search("")
        page.value("document.getElementById('grid').focus()")
        page.key("End")
        page.until("document.querySelector('[aria-selected=true]')?.dataset.row", str(count - 1))
        assert page.value("document.querySelectorAll('#grid-rows > *').length") < 60
        used = page.value("Math.max(0, ...longTasks)")
        check_quiet(page, path)
    with capsys.disabled():
        print(
            f"\n1,000,000 records: {size / count:.1f} bytes a record, interactive after {ready_s:.2f} s,"
            f" longest task {opening:.0f} ms while opening, {used:.0f} ms in use"
        )
    assert size < 30 * count
    assert max(ready_s * 1000, opening, used) < 60_000  # not quadratic, on the busiest machine
