"""Spans in the page: bars in the lane of their thread, a level lower than their parent's."""

from pathlib import Path

from tests.client.export.timelines.test_spans import Step, recording
from tests.client.html.chromium import Chromium, Page
from tests.client.html.example import page_of
from tests.client.html.test_writing import LANES_BOX, check_quiet, show

STEPS: list[Step] = [
    ("begin", 1, 0, 0, 11),
    ("begin", 2, 1, 100_000, 11),
    ("end", 2, 500_000, 600_000, 11),
    ("end", 1, 700_000, 700_000, 11),
    ("end", 9, 400_000, 1_000_000, 12),  # its begin is missing
    ("begin", 3, 0, 600_000, 12),  # its end is missing
]


def pointed(page: Page, part: float, lane: int) -> list[str]:
    box = page.value(LANES_BOX)
    page.mouse("mouseMoved", box[0] + box[2] * part, box[1] + 20 * lane + 30)
    page.until("document.getElementById('tip').hidden", False)
    return page.text("#tip").split("\n")


def test_spans_are_bars_with_their_times(chromium: Chromium, tmp_path: Path) -> None:
    path = page_of(recording(tmp_path / "perf.data", sorted(STEPS, key=lambda step: step[3])))
    with chromium.page(path) as page:
        show(page)
        page.until("document.body.dataset.complete", "true")
        assert page.value("document.getElementById('timeline').dataset.spans") == "4"
        assert [line for line in pointed(page, 0.3, 0) if line.startswith("order: ")] == [
            "order: 700 µs",
            "order: 500 µs",
        ]
        assert [line for line in pointed(page, 0.8, 1) if line.startswith("order: ")] == ["order: 400 µs"] * 2
        assert not [line for line in pointed(page, 0.9, 0) if line.startswith("order: ")]
        check_quiet(page, path)
