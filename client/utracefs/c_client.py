"""Paths of the C client: a tree as below /usr/local, inside this package.

    utracefs/c/include/utracefs.h, utracefs.hpp
    utracefs/c/lib/libutracefs.so, libutracefs.a, libutracefs-preload.so
    utracefs/c/lib/pkgconfig/, utracefs/c/lib/cmake/

It may be moved as a whole. setup.py puts it there if make exists.
"""

import os

PREFIX = os.path.join(os.path.dirname(os.path.abspath(__file__)), "c")

_PRELOAD = "lib/libutracefs-preload.so"


def prefix() -> str | None:
    """Root of the tree; None: it was not built."""
    return PREFIX if os.path.exists(os.path.join(PREFIX, "include", "utracefs.h")) else None


def preload_library() -> str | None:
    """The library that connects programs for the kernel's user_events; None: it was not built."""
    path = os.path.join(PREFIX, _PRELOAD)
    return path if os.path.exists(path) else None
