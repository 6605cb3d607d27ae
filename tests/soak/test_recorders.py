"""A few rounds of the part record of the soak, and its judge."""

import os
import tempfile
from pathlib import Path

import pytest

from tests.soak.attacks.attack import Setting
from tests.soak.recorders import KINDS, Kept, missing, record
from tests.soak.report import Report


@pytest.mark.long
@pytest.mark.parametrize("number", range(len(KINDS)))
def test_a_round(number: int) -> None:
    report = Report("g")
    with tempfile.TemporaryDirectory(prefix="utracefs-soak-") as folder:
        os.chmod(folder, 0o755)
        record(Setting("g", 0, round=number), report, Path(folder))
    assert report.counts["judgements"] > 3 and not report.findings


def test_missing_records_are_those_in_between(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})

    def kept(*records: tuple[int, int, int]) -> list[Kept]:
        return [Kept("p0", 0, n, cpu, time_ns) for n, cpu, time_ns in records]

    assert missing(kept((0, 0, 10), (1, 1, 20), (2, 0, 30), (3, 1, 40))) == {"p0/0": 0}
    assert missing(kept((0, 1, 10), (1, 0, 20), (4, 1, 30), (5, 1, 50), (8, 0, 60))) == {"p0/0": 2}
    assert missing(kept((0, 0, 10), (9, 0, 20))) == {}
    late = kept((0, 0, 10), (1, 1, 10), (3, 1, 30), (2, 0, 40))
    assert missing(late) == {"p0/0": 0}
