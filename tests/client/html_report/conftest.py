from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.client.html_report.chromium import Chromium


@pytest.fixture(scope="session")
def chromium() -> Iterator[Chromium]:
    with Chromium() as browser:
        yield browser
