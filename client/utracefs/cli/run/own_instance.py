"""A private instance for `record` and `stream`, independent of other users of the tree.

    make    mkdir instances/COMMAND-PID, open remove_on_close in it: it is removed with our connection,
            however we end. (A kill between the two requests leaves an instance without enabled events.)
    events  standing_events of that instance: matching events are enabled in it, now and when registered
    end     close; this removes the instance

Account of its records: `ledger`.
"""

import contextlib
import errno
import os
from collections.abc import Iterator

from utracefs.cli import Failure
from utracefs.cli.instance_option import Place
from utracefs.tree.tracefs import Tracefs


@contextlib.contextmanager
def own_instance(tree: Tracefs, command: str, name: str = "", *, returns: bool = False) -> Iterator[Place]:
    """Make an instance, named `name` or after the command and this process. It is removed at the end of the
    context or of the connection. returns: after a restart of the daemon the instance is kept for a while,
    until `hold` opens it again. Failure: the name exists."""
    place = _make_named(tree, name) if name else _make(tree, f"{command}-{os.getpid()}")
    handle = hold(tree, place)
    try:
        if returns:
            with contextlib.suppress(OSError):  # a daemon of 0.1.0 has no such write
                tree.write(handle, b"1\n")
        yield place
    finally:
        with contextlib.suppress(OSError):  # of a connection that ended, with all its handles
            tree.close_handle(handle)


def hold(tree: Tracefs, place: Place) -> int:
    """Remove the instance with this connection; returns the handle. FileNotFoundError."""
    return tree.open(place.path("remove_on_close"), os.O_WRONLY)


def _make_named(tree: Tracefs, name: str) -> Place:
    try:
        tree.mkdir(f"instances/{name}")
    except FileExistsError:
        reason = "there is an instance of this name already; --keep takes one as it is"
        raise Failure(name, reason) from None
    except OSError as error:
        raise OSError(error.errno, error.strerror, name) from None
    return Place(name)


def _make(tree: Tracefs, name: str) -> Place:
    """Another process in a container may have the same number."""
    for suffix in ("", *(f"-{n}" for n in range(2, 100))):
        with contextlib.suppress(FileExistsError):
            tree.mkdir(f"instances/{name}{suffix}")
            return Place(name + suffix)
    raise FileExistsError(errno.EEXIST, "exists a hundred times", f"instances/{name}")
