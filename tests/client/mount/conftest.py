"""The program whose memory is looked at."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.client.mount.kernel.canary import Canary, build


@pytest.fixture(scope="session")
def canary_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("canary"))


@pytest.fixture
def new_canary(canary_program: Path) -> Iterator[Callable[..., Canary]]:
    made: list[Canary] = []

    def make(*wrapper: str, **options: Any) -> Canary:
        made.append(Canary(canary_program, *wrapper, **options))
        return made[-1]

    yield make
    for canary in made:
        canary.close()


@pytest.fixture
def canary(new_canary: Callable[..., Canary]) -> Canary:
    return new_canary()
