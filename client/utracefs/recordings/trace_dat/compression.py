"""The compression of a trace.dat of version 7, as trace-cmd has it: its name and version are in the file
header, SECTION_COMPRESSED marks each compressed section.

    a section of texts  CHUNK, data
    BUFFER              per cpu: u32 number of chunks, then CHUNK, data of each

A chunk holds whole pages. The CPU_EXTENT of a cpu begins at the number, and its size is that of the chunks.

zlib is always there, but some builds of trace-cmd read only zstd (Debian's) or
only zlib (`trace-cmd list -c`). zstd is in Python's library from 3.14 on, else in `backports.zstd`.
"""

import mmap
import tempfile
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

import attrs

import utracefs.recordings.trace_dat.format as layout

if TYPE_CHECKING:
    from typing_extensions import Buffer


NAMES: Final = ("zstd", "zlib")

_ZLIB_LEVEL: Final = 1
"""A recorder competes with the recorded programs for the cpus."""
_MAX_RATIO: Final = 1100
"""Limit of plain bytes for each byte of a file: zlib cannot do more than 1032. A small file that claims more
would fill memory or disk."""


@attrs.frozen
class Compression:
    name: str
    version: str
    compress: Callable[["Buffer"], bytes]
    decompress: Callable[["Buffer", int], bytes]
    """Decompress; returns at most that many bytes."""
    error: type[Exception]
    """Raised by `decompress` for invalid data."""

    @property
    def strings(self) -> tuple[bytes, bytes]:
        return self.name.encode(), self.version.encode()

    def packed(self, data: "Buffer") -> bytes:
        """A CHUNK and its data."""
        stream = self.compress(data)
        return layout.CHUNK.pack(len(stream), memoryview(data).nbytes) + stream

    def unpack(self, data: "Buffer", size: int) -> bytes:
        """Decompress to `size` bytes. ValueError: invalid data, or another size."""
        if size > _MAX_RATIO * (memoryview(data).nbytes + 4096):
            raise ValueError(f"{self.name}: implausible size")
        try:
            plain = self.decompress(data, size + 1)
        except self.error as error:
            raise ValueError(f"{self.name}: {error}") from None
        if len(plain) != size:
            raise ValueError(f"{self.name}: {len(plain)} bytes instead of {size}")
        return plain


def compression_of(name: str) -> Compression | None:
    """None: unknown. ImportError: its library is not installed."""
    if name == "zlib":

        def unzip(data: "Buffer", size: int) -> bytes:
            return zlib.decompressobj().decompress(data, size)

        def compress(data: "Buffer") -> bytes:
            return zlib.compress(data, _ZLIB_LEVEL)

        return Compression(name, zlib.ZLIB_VERSION, compress, unzip, zlib.error)
    if name == "zstd":
        try:
            from compression import zstd  # type: ignore[import-not-found, unused-ignore]
        except ImportError:
            from backports import zstd

        def expand(data: "Buffer", size: int) -> bytes:
            expanded: bytes = zstd.ZstdDecompressor().decompress(data, max_length=size)
            return expanded

        return Compression(name, zstd.zstd_version, zstd.compress, expand, zstd.ZstdError)
    return None


class Packed:
    """The chunks of one cpu in a file. ValueError, struct.error: invalid."""

    def __init__(self, file: "mmap.mmap | bytes", extent: layout.Extent, page_size: int) -> None:
        self._file = file
        self._chunks: list[tuple[int, int, int]] = []
        """Offset and size of the data, plain size."""
        at, end = extent.offset, extent.offset + layout.U32.size + extent.size
        if end > len(file):
            raise ValueError("cut off")
        if not extent.size:
            return
        (count,) = layout.U32.unpack_from(file, at)
        at += layout.U32.size
        for _ in range(count):
            size, plain = layout.CHUNK.unpack_from(file, at)
            at += layout.CHUNK.size
            if at + size > end or plain % page_size:
                raise ValueError("chunk")
            self._chunks.append((at, size, plain))
            at += size

    @property
    def size(self) -> int:
        """Plain bytes."""
        return sum(plain for _, _, plain in self._chunks)

    def unpack(self, compression: Compression) -> Iterable[bytes]:
        for at, size, plain in self._chunks:
            yield compression.unpack(self._file[at : at + size], plain)


def unpacked(
    compression: Compression, cpus: Sequence[Packed], *, file_size: int, memory_bytes: int
) -> "mmap.mmap | bytes":
    """The plain pages, cpu after cpu; above memory_bytes in a temporary file. ValueError: invalid; OSError:
    no space."""
    total = sum(cpu.size for cpu in cpus)
    if total > _MAX_RATIO * file_size:
        raise ValueError("implausible size")
    if not total:
        return b""
    if total <= memory_bytes:
        plain = mmap.mmap(-1, total)
    else:
        with tempfile.TemporaryFile(prefix="utracefs-") as file:
            file.truncate(total)
            plain = mmap.mmap(file.fileno(), total)
    try:
        for cpu in cpus:
            for chunk in cpu.unpack(compression):
                plain.write(chunk)
    except BaseException:
        plain.close()
        raise
    return plain
