"""The status file in memory."""

from __future__ import annotations

import os
import pickle

import pytest

from utracefs._status_map import StatusMap


def test_a_descriptor_that_is_none() -> None:
    with pytest.raises(OSError, match="Bad file descriptor"):
        StatusMap(-1, 4096)


def test_it_keeps_no_descriptor_and_belongs_to_one_process() -> None:
    fd = os.memfd_create("status")
    os.ftruncate(fd, 4096)
    before = set(os.listdir("/proc/self/fd"))
    status_map = StatusMap(fd, 4096)
    assert status_map.size == 4096
    assert len(os.listdir("/proc/self/fd")) == len(before)
    os.close(fd)
    with pytest.raises(TypeError, match="one process"):
        pickle.dumps(status_map)
