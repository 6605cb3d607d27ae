"""The command, and its page."""

import re
from pathlib import Path

from tests.client.cli.kit import Cli
from utracefs.cli.metrics.families import FAMILIES

PAGE = Path(__file__).parents[4] / "docs" / "monitoring.md"


def test_the_page_has_all_metrics() -> None:
    rows = re.findall(r"^\| `(utracefs_\w+)` \| (.*?) \| (.*) \|$", PAGE.read_text(), re.MULTILINE)
    assert rows == [
        (family.name, ", ".join(f"`{label}`" for label in family.labels), family.help)
        for family in FAMILIES.values()
    ]


def test_both_formats(traced: Cli) -> None:
    assert traced.out("metrics").endswith("\n# EOF\n")
    text = traced.out("metrics", "--text", "--max-events", "0")
    assert "# TYPE utracefs_daemon_faults_total counter\n" in text and "EOF" not in text
