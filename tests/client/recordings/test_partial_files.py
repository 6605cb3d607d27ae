"""The names of what is not complete yet, and the room for its end."""

import errno
import os
import re
import resource
import signal
from pathlib import Path

import pytest

from utracefs.recordings.partial_files import (
    NoRoom,
    Reserve,
    WholeFile,
    append,
    dumped_name,
    errors_about,
    name_beside,
    open_part,
    target_of,
)


@pytest.mark.parametrize("path", ["/a/b", "b", f"/a/{'b' * 255}"])
def test_it_is_in_the_same_folder_and_always_another_one(path: str) -> None:
    folder = path.rpartition("/")[0]
    names = {name_beside(path) for _ in range(100)}
    assert len(names) == 100
    for name in names:
        assert name.rpartition("/")[0] == folder
        assert name.rpartition("/")[2].startswith(".utracefs-") and len(name) < len(folder) + 64


def test_a_part_never_takes_the_place_of_another(tmp_path: Path) -> None:
    for path in (tmp_path / "a.dat", tmp_path / ("b" * 255)):
        with open_part(str(path)) as one, open_part(str(path)) as two:
            one.write(b"1")
            two.write(b"2")
            assert Path(one.name).read_bytes() == b"1" and Path(two.name).read_bytes() == b"2"
            assert two.name == f"{one.name}.2" or len(Path(one.name).name) > 240


def test_names_of_what_was_dumped(tmp_path: Path) -> None:
    path = str(tmp_path / "perf.data")
    names = []
    for _ in range(3):
        names.append(dumped_name(path))
        Path(names[-1]).touch()
    assert len(set(names)) == 3
    assert all(re.fullmatch(r".*/perf\.data\.2\d{15}", name) for name in names)


def test_what_cannot_be_a_recording(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("file")
    assert target_of(str(tmp_path / "link")) == str(tmp_path / "file")
    for path, number in ((str(tmp_path), errno.EISDIR), ("/dev/null", errno.EINVAL)):
        with pytest.raises(OSError) as caught:
            target_of(path)
        assert (caught.value.errno, caught.value.filename) == (number, path)
    with pytest.raises(FileNotFoundError) as missing, errors_about("short"):
        os.stat(tmp_path / "other")
    assert missing.value.filename == "short"


def test_room_that_is_kept(tmp_path: Path) -> None:
    reserve = Reserve(str(tmp_path), 1 << 20)
    reserve.grow(1 << 16)
    reserve.grow(1 << 21)
    assert list(tmp_path.iterdir()) == []
    reserve.free()
    with pytest.raises(FileNotFoundError):
        Reserve("/no/such", 1)


def test_a_write_that_finds_no_room_is_undone(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        with WholeFile(str(tmp_path / "x"), reserve=0) as file:
            file.write(b"one")
            resource.setrlimit(resource.RLIMIT_FSIZE, (8192, limits[1]))
            for _ in range(2):
                with pytest.raises(NoRoom):
                    file.write(bytes(9000))
                with pytest.raises(NoRoom):
                    file.need(9000)
            file.need(5000)
            file.write(b"two")
        (tmp_path / "y").write_bytes(b"old")
        append(str(tmp_path / "y"), b"new")
        with pytest.raises(NoRoom):
            append(str(tmp_path / "y"), bytes(9000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert (tmp_path / "x").read_bytes() == b"onetwo"
    assert (tmp_path / "y").read_bytes() == b"oldnew"
