"""`make ci` installs every judge, and only judges that are listed may cause a test to be left out."""

import re
from pathlib import Path

import pytest

from tests.judges import PACKAGES

ROOT = Path(__file__).parents[1]


def test_all_are_installed_by_make() -> None:
    targets = re.findall(
        r"^(?:test-|ci-)?tools:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE
    )
    packages = set(re.findall(r",([a-z0-9+-]+)\)$", "".join(targets), re.MULTILINE))
    assert set(PACKAGES.values()) <= packages


@pytest.mark.parametrize("folder", ["client/export", "client/recordings"])
def test_no_format_goes_unjudged(folder: str) -> None:
    skipping = [
        path.name
        for path in (ROOT / "tests" / folder).rglob("*.py")
        if re.search(r"(mark|pytest)\.skip", path.read_text())
    ]
    assert skipping == []
