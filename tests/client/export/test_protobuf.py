"""Parts of messages, by the rules of protobuf's documentation."""

import pytest

from utracefs.export._protobuf import message, tagged, utf8, varint


@pytest.mark.parametrize(
    ("value", "data"),
    [(0, "00"), (1, "01"), (127, "7f"), (128, "8001"), (150, "9601"), (2**64 - 1, "ff" * 9 + "01")],
)
def test_varints(value: int, data: str) -> None:
    assert varint(value).hex() == data


@pytest.mark.parametrize("value", [-1, 2**64])
def test_values_have_64_bits(value: int) -> None:
    with pytest.raises(OverflowError):
        varint(value)


def test_fields() -> None:
    assert tagged(1 << 3, 150).hex() == "089601"
    assert message(2 << 3 | 2, b"testing").hex() == "120774657374696e67"
    assert message(16 << 3 | 2, bytes(200))[:4].hex() == "8201c801"


def test_texts() -> None:
    assert utf8("a\udcffä") == "a\ufffdä".encode()
