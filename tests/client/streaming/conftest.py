from collections.abc import Iterator

import pytest

from tests.client.streaming.plain_writer import PlainWriter


@pytest.fixture
def writer() -> Iterator[PlainWriter]:
    writer = PlainWriter()
    yield writer
    writer.close()
