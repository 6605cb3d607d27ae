"""Open files, tables of files and directories, over a context of the test's own."""

import errno
import os
from collections.abc import Callable, Iterator

import attrs
import pytest

from tests.daemon.tree.world import ADMIN, errno_of
from utracefs_protocol.errors import TraceError
from utracefs_protocol.messages.tracefs import Stat
from utracefsd.machine.peer import Peer
from utracefsd.tree.nodes import FileNode, OpenFile, Row, Rows, RowTable, row_table

STREAM = OpenFile(os.O_RDWR)


@attrs.define
class Box:
    """The context of the files below."""

    text: bytes = b"hello\n"
    shown: int = 0
    calls: list[object] = attrs.field(factory=list)

    def show(self) -> bytes:
        self.shown += 1
        return self.text

    def store(self, data: bytes, peer: Peer) -> int | None:
        self.calls.append(("store", data, peer))
        return 2 if data == b"two of these" else None

    def truncate(self, peer: Peer) -> None:
        self.calls.append(("truncate", peer))

    def release(self) -> None:
        self.calls.append("release")

    def show_pieces(self) -> Iterator[bytes]:
        for _ in range(10):
            self.shown += 1
            yield b"%d" % (self.shown % 10) * 30_000


def opens_a_stream(box: Box, flags: int, peer: Peer) -> OpenFile:
    return STREAM


TABLE: RowTable[Box] = row_table(
    Row(b"both", Box.show, Box.store, Box.truncate, Box.release),
    Row(b"reading", Box.show),
    Row(b"writing", store=Box.store, holds_instance=False),
    Row(b"pieces", Box.show_pieces),
    Row(b"stream", Box.show, opener=opens_a_stream, mode=0o440),
)


@pytest.fixture
def box() -> Box:
    return Box()


def node_of(box: Box, name: bytes, guard: Callable[[], None] = lambda: None) -> FileNode[Box]:
    node = Rows(box, TABLE, guard=guard).lookup(name)
    assert isinstance(node, FileNode)
    return node


# ---- a directory that is a table


def test_rows_are_found_by_name_and_listed_in_their_order(box: Box) -> None:
    folder: Rows[Box] = Rows(box, TABLE, mode=0o700, directories=[(b"below", lambda box: Rows(box, TABLE))])
    names = [b"both", b"reading", b"writing", b"pieces", b"stream"]
    assert list(folder.names()) == [*((name, "f") for name in names), (b"below", "d")]
    assert folder.stat() == Stat("d", 0o700)
    below = folder.lookup(b"below")
    assert below is not None and below.stat() == Stat("d", 0o755)
    assert below is not folder.lookup(b"below"), "made by each walk"
    for name in (b"", b"BOTH", b"bot", b"both\0", b"."):
        assert folder.lookup(name) is None


def test_a_file_says_what_its_row_says(box: Box) -> None:
    node = node_of(box, b"writing")
    assert (node.stat(), node.mode, node.holds_instance) == (Stat("f", 0o200), 0o200, False)
    assert node_of(box, b"both").holds_instance


# ---- opening


def test_flags_that_mean_nothing_here(box: Box) -> None:
    for flags in (os.O_CREAT, os.O_EXCL, os.O_APPEND, os.O_CLOEXEC):
        assert node_of(box, b"both").open(flags, ADMIN).read(10) == b"hello\n"


@pytest.mark.parametrize("access", [os.O_WRONLY, os.O_RDWR])
def test_truncating(box: Box, access: int) -> None:
    node_of(box, b"both").open(access, ADMIN)
    assert box.calls == []
    node_of(box, b"both").open(access | os.O_TRUNC, ADMIN)
    assert box.calls == [("truncate", ADMIN)]
    node_of(box, b"writing").open(access | os.O_TRUNC, ADMIN)
    node_of(box, b"both").open(os.O_RDONLY | os.O_TRUNC, ADMIN)
    assert len(box.calls) == 1, "not without a truncate, and not for reading"


@pytest.mark.parametrize("flags", [os.O_WRONLY, os.O_RDWR, os.O_TRUNC, os.O_CREAT])
def test_a_directory_is_opened_for_reading_only(box: Box, flags: int) -> None:
    assert errno_of(Rows(box, TABLE).open, flags, ADMIN) == errno.EISDIR


# ---- reading and writing


def test_the_text_is_made_once_until_the_beginning_is_sought(box: Box) -> None:
    file = node_of(box, b"both").open(os.O_RDONLY, ADMIN)
    assert box.shown == 0
    assert [file.read(4), file.read(4), file.read(4)] == [b"hell", b"o\n", b""]
    assert file.seek(1) == 1
    box.text = b"later\n"
    assert (file.read(100), box.shown) == (b"ello\n", 1)
    assert file.seek(0) == 0
    assert (file.read(100), box.shown) == (b"later\n", 2)
    assert file.seek(1000) == 1000
    assert file.read(1) == b""


def test_a_text_in_pieces_is_made_during_the_read(box: Box) -> None:
    whole = b"".join(b"%d" % (n % 10) * 30_000 for n in range(1, 11))
    file = node_of(box, b"pieces").open(os.O_RDONLY, ADMIN)
    assert (file.read(0), box.shown) == (b"", 0)
    assert (file.read(30_000), box.shown) == (whole[:30_000], 1)
    file.seek(45_000)
    assert (file.read(10), box.shown) == (whole[45_000:45_010], 2)
    found = file.read(1 << 20)
    assert found == whole[45_010 : 45_010 + len(found)]
    assert box.shown < 10, "not all at once"
    file.seek(10)
    rest = b""
    while piece := file.read(1 << 20):
        rest += piece
    assert rest == whole[10:]
    file.seek(0)
    assert (file.read(3), box.shown) == (b"111", 11)
    file.seek(1 << 30)
    assert file.read(10) == b""


def test_how_much_of_a_write_was_used(box: Box) -> None:
    file = node_of(box, b"writing").open(os.O_WRONLY, ADMIN)
    assert file.write(b"all") == 3
    assert file.write(b"two of these") == 2
    assert file.write(b"") == 0
    assert box.calls == [("store", data, ADMIN) for data in (b"all", b"two of these", b"")]


def test_the_guard_of_a_file_that_is_gone(box: Box) -> None:
    gone = False

    def guard() -> None:
        if gone:
            raise TraceError(errno.ENODEV, "the event is gone")

    file = node_of(box, b"both", guard).open(os.O_RDWR, ADMIN)
    assert file.read(1) == b"h"
    gone = True
    assert errno_of(file.read, 1) == errno.ENODEV
    assert errno_of(file.write, b"x") == errno.ENODEV
    assert box.calls == []
    file.close()
    assert box.calls == ["release"]


# ---- closing


def test_closing_happens_once(box: Box) -> None:
    file = node_of(box, b"both").open(os.O_RDWR, ADMIN)
    file.on_close = lambda: box.calls.append("on_close")
    assert file.ready()
    file.close()
    file.close()
    assert box.calls == ["release", "on_close"]
    for call in (lambda: file.read(1), lambda: file.write(b"x"), lambda: file.seek(0), file.ready):
        assert errno_of(call) == errno.EBADF
