from collections.abc import Iterator

import pytest

from tests.protocol.pages.stream_writer import PlainWriter


@pytest.fixture
def writer() -> Iterator[PlainWriter]:
    writer = PlainWriter()
    yield writer
    writer.close()
