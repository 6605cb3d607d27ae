"""Pages without all data: records beyond the limit, unreadable fields, fields not loaded yet."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.client.html.chromium import Chromium, Page
from tests.client.html.example import MANY, page_of
from tests.client.html.test_writing import COLOURS, LANES_BOX, in_view, settle, show, view
from utracefs.cli.convert.report import report
from utracefs.html import writing
from utracefs.recordings.recording import Record

FIRST = 5_000


@pytest.fixture
def first(chromium: Chromium, many: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Page]:
    """A page that has the first records only, and counts in bins of the others."""
    monkeypatch.setattr(writing, "MAX_RECORDS", FIRST)
    monkeypatch.setattr(writing, "MAX_COUNTS", 2000)
    with chromium.page(page_of(many)) as shown:
        yield show(shown)
        assert shown.errors == []


def zoom_to(page: Page, record: Record, first: Record, times: int) -> None:
    """`w` so many times, with the record in the middle."""
    for _ in range(times):
        page.key("w")
        begin, end = view(page)
        at = record.time_ns - first.time_ns
        width = page.value("document.getElementById('rates').clientWidth")
        points = (begin + end - 2 * at) / 2 / (end - begin) * width
        x, y = page.value(
            "((b) => [b.left, b.top])(document.getElementById('rates').getBoundingClientRect())"
        )
        page.drag((x + width / 2, y + 20), (x + width / 2 + points, y + 20))


def test_the_timeline_counts_what_the_table_does_not_have(first: Page, records: list[Record]) -> None:
    last = records[FIRST - 1].time_ns
    assert first.text("#notice") == (
        f"Table, fields and search have the first 5,000 of 20,000 records, up to {last // 10**9}."
        f"{last % 10**9:09d}; the timeline counts all. --since, --last, -e, --cpu or -P select others"
    )
    assert first.texts("#facts dd")[0] == "20,000"
    assert first.text("#records-count") == "5,000 in view, 15,000 only in the timeline"
    assert first.text("#range-text").endswith(" · 20,000 records")
    counts = Counter(record.name for record in records)
    assert first.texts("#events .count") == [f"{n:,}" for _, n in counts.most_common()]
    tids = Counter(record.tid for record in records)
    assert first.texts("button.lane .count") == [f"{tids[t] / 1000:.3g} k" for t in sorted(tids)]
    lost = sum(record.lost for record in records if record.lost > 0)
    assert first.text("#losses p.loss").startswith(f"{lost} records")


def test_where_there_are_no_rows_bins_are_shown(first: Page, records: list[Record]) -> None:
    zoom_to(first, records[15_000], records[0], 14)
    settle(first)
    assert in_view(first) == 0
    assert re.search(r"^0 in view, ≤ [1-9]\d* only in the timeline$", first.text("#records-count"))
    assert "≤" in first.text("#rate-label") and first.value(COLOURS)
    empty = first.text("#grid-empty")
    assert empty.startswith("The table has no records of these times, the timeline only counts them.")
    since, until = re.findall(r"--(?:since|until) (\d+\.\d+)", empty)
    begin, end = view(first)
    zero = records[0].time_ns
    assert float(since) <= (zero + begin) / 1e9 + 1e-6 and float(until) >= (zero + end) / 1e9 - 1e-6
    box = first.value(LANES_BOX)
    first.mouse("mouseMoved", box[0] + box[2] / 2, box[1] + 30)
    first.until("document.getElementById('tip').hidden", False)


def test_what_has_no_row_is_hidden_with_its_event_and_not_searched(
    first: Page, records: list[Record]
) -> None:
    first.search("status>=500")
    first.key("Escape")
    settle(first)
    found = sum(int(r.fields.get("status", 0)) >= 500 for r in records[:FIRST])
    assert first.text("#search-result") == f"{found:,} of 5,000 in the table"
    assert first.text("#range-text").endswith(f" · {found:,} records")
    first.search("")
    first.key("Escape")
    first.click("#events li:nth-child(1) input")
    most, _ = Counter(record.name for record in records).most_common()[0]
    left = [record.name != most for record in records]
    text = f"{sum(left[:FIRST]):,} in view, {sum(left[FIRST:]):,} only in the timeline"
    first.until("document.getElementById('records-count').textContent", text)
    tids = Counter(record.tid for record, is_left in zip(records, left, strict=True) if is_left)
    assert first.texts("button.lane .count") == [
        f"{tids[t] / 1000:.3g} k" if tids[t] > 999 else str(tids[t]) for t in sorted(tids)
    ]


def test_too_much_text_for_one_page(chromium: Chromium, many: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "MAX_TEXT_BYTES", 1 << 16)
    with chromium.page(page_of(many)) as page:
        show(page)
        part = int(page.text("#records-count").split()[0].replace(",", ""))
        assert 0 < part < MANY and page.texts("#facts dd")[0] == f"{MANY:,}"


def test_records_that_are_only_counted_are_reported(
    many: Path, records: list[Record], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "MAX_RECORDS", FIRST)
    done = CliRunner().invoke(report, ["--html", str(many), "-o", str(tmp_path / "t.html")])
    lost = sum(record.lost for record in records if record.lost > 0)
    says = f"{MANY} records, {lost} lost; the table has the first {FIRST}, the timeline counts all\n"
    assert done.output.partition(": ")[2] == says


def test_the_last_seconds(chromium: Chromium, many: Path, records: list[Record], tmp_path: Path) -> None:
    target = tmp_path / "t.html"
    done = CliRunner().invoke(report, ["--html", "--last", "0.01", str(many), "-o", str(target)])
    wanted = [record for record in records if record.time_ns >= records[-1].time_ns - 10**7]
    assert done.exit_code == 0, done.output
    with chromium.page(target) as page:
        assert in_view(show(page)) == len(wanted) < MANY
        begin, _ = divmod(wanted[0].time_ns, 10**9)
        assert page.texts("#grid-rows > :first-child > :first-child")[0].startswith(f"{begin}.")


WATCH_ROWS = """
window.unfinished = 0;
new MutationObserver(() => {
	for (const row of document.querySelectorAll("#grid-rows > *"))
		if (row.lastChild.textContent.includes("…")) window.unfinished++;
}).observe(document, {childList: true, subtree: true});
"""


def test_no_row_ever_shows_dots_for_its_fields(chromium: Chromium, many: Path) -> None:
    with chromium.page(page_of(many), before=WATCH_ROWS) as page:
        show(page)
        assert page.value("unfinished") == 0
        assert page.value("document.getElementById('grid').getAttribute('aria-busy')") == "false"


def test_fields_that_cannot_be_read_say_so(chromium: Chromium, many: Path, records: list[Record]) -> None:
    path = page_of(many)
    html = path.read_text()
    events = json.loads(re.findall(r'id="head"[^>]*>(.*?)</script>', html)[0])["events"]
    bad = next(e for e in events if e["name"] == "big")["fields"][1]["column"]["id"]
    path.write_text(re.sub(rf'(id="data{bad}" type="text/plain">)[^<]*', r"\1AAAA", html))
    with chromium.page(path) as page:
        show(page)
        assert page.text("#notice").startswith("Fields of big cannot be read: ")
        page.search("event=big")
        assert page.texts("#grid-rows > :first-child > :last-child")[0].startswith("cannot be read: ")
        page.search("event=queue_length")
        row = int(page.value("document.querySelector('#grid-rows > *').dataset.row"))
        assert records[row].name == "queue_length"
        text = "  ".join(f"{name}={value!s}" for name, value in records[row].fields.items())
        assert page.texts("#grid-rows > :first-child > :last-child")[0].rstrip() == text
        assert page.errors == []
