"""The bin header in C, judged by the msgpack package."""

import ctypes
import subprocess
from pathlib import Path

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

INCLUDE = Path(__file__).parents[2] / "protocol" / "utracefs_protocol" / "include"
EXPORTED = """
#include "bin.h"
unsigned put_header(uint8_t *at, uint32_t size) { return bin_put_header(at, size); }
unsigned get_header(const uint8_t *at, size_t length, uint32_t *size)
{
    return bin_get_header(at, length, size);
}
"""
SIZES = [0, 1, 255, 256, 257, 65535, 65536, 1 << 20, (1 << 32) - 1]


@pytest.fixture(scope="module")
def header(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder = tmp_path_factory.mktemp("bin")
    library = folder / "bin.so"
    flags = ["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", f"-I{INCLUDE}"]
    subprocess.run(["gcc", *flags, "-x", "c", "-", "-o", str(library)], input=EXPORTED, text=True, check=True)
    return ctypes.CDLL(str(library))


def put(header: ctypes.CDLL, size: int) -> bytes:
    room = ctypes.create_string_buffer(b"\xee" * 8, 8)
    length = header.put_header(room, ctypes.c_uint32(size))
    assert room.raw[length:] == b"\xee" * (8 - length)
    return room.raw[:length]


def get(header: ctypes.CDLL, data: bytes) -> tuple[int, int]:
    size = ctypes.c_uint32()
    length: int = header.get_header(data, ctypes.c_size_t(len(data)), ctypes.byref(size))
    return length, size.value


@pytest.mark.parametrize("size", SIZES)
def test_header_as_the_msgpack_package_writes_it(header: ctypes.CDLL, size: int) -> None:
    packer = msgpack.Packer(use_bin_type=True, autoreset=False)
    if size <= 1 << 20:
        packer.pack(bytes(size))
        assert put(header, size) == packer.getbuffer()[: -size or None]
    else:
        assert put(header, size) == b"\xc6" + size.to_bytes(4, "big")


@given(st.sampled_from(SIZES) | st.integers(0, (1 << 32) - 1), st.binary(max_size=3))
def test_there_and_back(header: ctypes.CDLL, size: int, behind: bytes) -> None:
    data = put(header, size)
    assert get(header, data + behind) == (len(data), size)
    for end in range(len(data)):
        assert get(header, data[:end])[0] == 0


def test_a_longer_header_than_needed_is_read(header: ctypes.CDLL) -> None:
    assert get(header, b"\xc5\x00\x03abc") == (3, 3)
    assert get(header, b"\xc6\x00\x00\x00\x03abc") == (5, 3)


def test_what_begins_a_bin(header: ctypes.CDLL) -> None:
    for first in range(256):
        is_bin = 0xC4 <= first <= 0xC6
        assert bool(get(header, bytes([first]) + bytes(5))[0]) == is_bin
