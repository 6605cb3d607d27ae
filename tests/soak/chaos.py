"""Chaos."""

from __future__ import annotations

from pathlib import Path

from tests.soak.attack import Setting
from tests.soak.report import Report


def chaos(setting: Setting, report: Report, folder: Path) -> None:
    pass
