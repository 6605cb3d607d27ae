from collections.abc import Iterator

import pytest

from tests.client.c.bpf.assembler import Machine
from tests.client.c.building import sanitized
from tests.client.c.programs import started


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    with started(sanitized("bpf")) as program:
        yield Machine(program)
