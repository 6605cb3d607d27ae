from collections.abc import Iterator

import pytest

from tests.client.c.bpf.assembler import Machine
from tests.client.c.building import build
from tests.client.c.programs import started


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    with started(build("tests", sanitize="address,undefined") / "tests" / "bpf") as program:
        yield Machine(program)
