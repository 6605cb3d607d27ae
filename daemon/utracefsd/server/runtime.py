"""Where a daemon keeps its files: the directory of its two sockets and the folder of its status file.

    |             | system daemon (root) | user daemon                                             |
    |-------------|----------------------|---------------------------------------------------------|
    | sockets     | /run/utracefs        | $XDG_RUNTIME_DIR/utracefs, or /tmp/utracefs-UID          |
    | status file | /dev/shm/utracefs    | /dev/shm/utracefs-UID                                    |

`--dir` and the environment's UTRACEFS_DIR replace the first; the second is then /dev/shm/utracefs-HASH, with
HASH made from the absolute directory, so several daemons can run side by side (docs/protocol.md, section 1).
A standard directory named there replaces nothing: the unit file, whose daemon is not root, names
/run/utracefs.

/tmp and /dev/shm are writable for everybody, so another user may have made a folder there first, in order to
read records or to answer in the daemon's place. Such a folder is used only when it is a real directory owned
by the daemon's user with mode 0700. Programs do not look for the status file by its name. So if another user
has taken its folder's name, a random suffix is added, and the next daemon finds the folder by its owner. The
sockets' directory has to be where programs look: the error says how to choose another.

A chosen directory is checked as well: no part of its path that lies in a directory writable for everybody may
belong to another user, since its owner could put other sockets there.

A running daemon holds a lock on both folders; the kernel drops the lock when the process ends, however that
happens.

A daemon that ends with its parent leaves nothing to a later one. It marks its status folder. If it is killed,
the next daemon of the same user, whatever its directory, removes marked folders whose locks are free
(`remove_left_over`), with the sockets. Folders without the mark may hold someone's records and stay.
"""

import contextlib
import enum
import errno
import fcntl
import hashlib
import os
import secrets
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

import attrs

from utracefs_protocol import places
from utracefs_protocol.errors import TraceError
from utracefs_protocol.places import DATA_SOCKET, TRACEFS_SOCKET
from utracefsd.daemon_log import daemon_log
from utracefsd.machine.kept_file import remove

STATUS_FILE = "user_events_status"
LOCK_FILE = "utracefsd.lock"
MARK = "ends-with-parent"

SYSTEM_DIRECTORY = Path(places.SYSTEM_DIRECTORY)
SHARED_MEMORY = Path("/dev/shm")

_ANOTHER_DIRECTORY = "name another one with --dir, and to programs with UTRACEFS_DIR"

# sizeof(sockaddr_un.sun_path) is 108 with the closing NUL (unix(7)).
MAX_SOCKET_PATH = 107


class Kind(enum.Enum):
    """How the socket directory was chosen; decides how it is made and checked."""

    SYSTEM = "system"
    USER = "user"
    TEMPORARY = "temporary"
    CHOSEN = "chosen"


@attrs.frozen
class Runtime:
    """The two folders of one daemon. Making this object changes no file; `prepare` makes and checks them."""

    directory: Path
    """Holds the sockets and the lock file."""
    status_folder: Path
    """Below /dev/shm, mode 0700. Clients get a descriptor of the file in it and never look for it."""
    kind: Kind
    """How `directory` was chosen."""
    uid: int
    """The daemon's effective user, who must own the private folders."""

    @property
    def data_socket(self) -> Path:
        return self.directory / DATA_SOCKET

    @property
    def tracefs_socket(self) -> Path:
        return self.directory / TRACEFS_SOCKET

    @property
    def status_file(self) -> Path:
        return self.status_folder / STATUS_FILE

    def prepare(self, *, reachable: bool = False) -> "Runtime":
        """Make missing folders and refuse unsafe ones; returns the folders in use, with another status folder
        when another user has taken its name. `reachable`: a directory made here gets mode 0755.

        TraceError: ENAMETOOLONG (for sockaddr_un), EPERM (a folder of another user, a symbolic link, a mode
        that gives others access), ENOTDIR, or the errno of mkdir(2).
        """
        for path in (self.data_socket, self.tracefs_socket):
            if len(os.fsencode(path)) > MAX_SOCKET_PATH:
                raise TraceError(
                    errno.ENAMETOOLONG,
                    f"{path}: a socket's path has at most {MAX_SOCKET_PATH} bytes; "
                    "choose a shorter directory",
                )
        if self.kind is Kind.CHOSEN:
            _check_way(self.directory, self.uid)
        is_for_all = self.kind is Kind.SYSTEM or (self.kind is Kind.CHOSEN and reachable)
        _make(self.directory, 0o755 if is_for_all else 0o700)
        if self.kind is Kind.TEMPORARY:
            try:
                _check_private(self.directory, self.uid)
            except TraceError as error:
                raise TraceError(error.errno, f"{error.text}; {_ANOTHER_DIRECTORY}") from None
        else:
            _check_not_open_to_all(self.directory)
        found = attrs.evolve(self, status_folder=_free_name(self.status_folder, self.uid))
        _make(found.status_folder, 0o700)
        _check_private(found.status_folder, self.uid)
        return found

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Lock both folders for one daemon: two containers may share /dev/shm without sharing /run. EBUSY,
        naming the process, when another daemon holds one of them."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(_lock_file(self.directory / LOCK_FILE, self.directory))
            folder_fd = os.open(self.status_folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            stack.callback(os.close, folder_fd)
            if not _try_lock(folder_fd):
                raise TraceError(
                    errno.EBUSY, f"{self.status_folder}: in use by the daemon of another directory"
                )
            yield

    def mark(self, *, ends_with_parent: bool) -> None:
        """Whether the files of a killed daemon are to be removed. A folder that is not empty and has no mark
        gets none: it may hold someone's records. TraceError."""
        path = self.status_folder / MARK
        may = path.exists() or not any(self.status_folder.iterdir())
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        if ends_with_parent and may:
            try:
                fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
                with open(fd, "wb") as file:
                    file.write(os.fsencode(self.directory))
            except OSError as error:
                path.unlink(missing_ok=True)
                raise _failure(error, path) from error

    def unmark(self) -> None:
        """At the daemon's end: remove the mark, unless an error left other files beside it."""
        path = self.status_folder / MARK
        with contextlib.suppress(OSError):
            if list(self.status_folder.iterdir()) == [path]:
                path.unlink()

    def remove_status_folder(self) -> None:
        """Remove the folder if it is empty; the system daemon's stays, tmpfiles.d made it for the service's
        user."""
        if self.status_folder != SHARED_MEMORY / "utracefs":
            with contextlib.suppress(OSError):
                self.status_folder.rmdir()


def remove_left_over(uid: int) -> None:
    """Remove the folders of this user's killed daemons that ended with their parent; errors leave them."""
    for mark in sorted(SHARED_MEMORY.glob(f"utracefs-*/{MARK}")):
        with contextlib.suppress(OSError, TraceError):
            _check_private(mark.parent, uid)
            _remove_marked(mark, uid)


def _remove_marked(mark: Path, uid: int) -> None:
    folder = mark.parent
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with open(mark, "rb", opener=lambda path, _: os.open(path, flags)) as file:  # closed for a folder, too
        directory = Path(os.fsdecode(file.read(MAX_SOCKET_PATH)))
    if not folder.name.startswith(f"utracefs-{directory_hash(directory)}"):
        return
    with contextlib.ExitStack() as stack:
        try:
            ours = os.lstat(directory).st_uid == uid and not directory.is_symlink()
        except FileNotFoundError:
            ours = False
        if ours:  # in the same order as a starting daemon takes its locks
            stack.enter_context(_lock_file(directory / LOCK_FILE, directory))
        folder_fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        stack.callback(os.close, folder_fd)
        if not _try_lock(folder_fd) or not mark.exists():
            return
        daemon_log("folder-removed", folder=folder)
        if ours:
            for name in (DATA_SOCKET, TRACEFS_SOCKET):
                with contextlib.suppress(OSError):
                    (directory / name).unlink()
        # The mark is removed last: an interrupted removal is repeated.
        for path in folder.iterdir():
            if path != mark:
                remove(path)
        mark.unlink()
        folder.rmdir()
    if ours:
        directory.rmdir()


def locate(
    directory: str | os.PathLike[str] | None = None,
    *,
    environ: Mapping[str, str] = os.environ,
    uid: int | None = None,
) -> Runtime:
    """The folders of the daemon of `directory`, else of UTRACEFS_DIR, else of this user. Touches no file."""
    if uid is None:
        uid = os.geteuid()
    chosen = places.chosen_directory(os.fspath(directory) if directory else None, environ)
    standard_directory = Path(places.daemon_directory(environ, uid))
    if uid == 0:
        standard = Runtime(standard_directory, SHARED_MEMORY / "utracefs", Kind.SYSTEM, uid)
    else:
        temporary = standard_directory == Path(places.temporary_directory(uid))
        kind = Kind.TEMPORARY if temporary else Kind.USER
        standard = Runtime(standard_directory, SHARED_MEMORY / f"utracefs-{uid}", kind, uid)
    if not chosen:
        return standard
    absolute = Path(chosen)
    if absolute == standard.directory:
        return standard
    if absolute == SYSTEM_DIRECTORY:
        return Runtime(absolute, SHARED_MEMORY / "utracefs", Kind.SYSTEM, uid)
    return Runtime(absolute, SHARED_MEMORY / f"utracefs-{directory_hash(absolute)}", Kind.CHOSEN, uid)


def directory_hash(directory: Path) -> str:
    """16 hexadecimal digits from the absolute directory; never from what a symbolic link in it leads to."""
    return hashlib.sha256(os.fsencode(directory)).hexdigest()[:16]


def _make(directory: Path, mode: int) -> None:
    """Make the last part of the path only: a missing parent means a mistake in the name, and would get a
    mode that nobody chose."""
    try:
        os.mkdir(directory, mode)
    except FileExistsError:
        return
    except FileNotFoundError as error:
        text = f"{directory}: there is no directory {directory.parent}; make it first, or check the name"
        raise TraceError(errno.ENOENT, text) from error
    except OSError as error:
        raise _failure(error, directory) from error
    # mkdir(2) takes the umask away from the mode; a strict umask must not lock the group out of
    # /run/utracefs. A user who may write to the parent may have replaced the folder meanwhile.
    try:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if os.fstat(fd).st_uid != os.geteuid():
                raise TraceError(errno.EPERM, f"{directory}: somebody else replaced it while it was made")
            os.fchmod(fd, mode)
        finally:
            os.close(fd)
    except OSError as error:
        raise _failure(error, directory) from error


def _free_name(folder: Path, uid: int) -> Path:
    """`folder`, or another name when another user has taken that one: an earlier daemon's other name, or a
    new one."""
    for entry in sorted(folder.parent.glob(f"{folder.name}.*")):
        with contextlib.suppress(OSError, TraceError):
            _check_private(entry, uid)
            return entry
    try:
        owner = os.lstat(folder).st_uid
    except OSError:
        return folder
    if owner == uid:
        return folder
    daemon_log("status-folder-taken", folder=folder, uid=owner)
    return folder.with_name(f"{folder.name}.{secrets.token_hex(8)}")


def _check_way(directory: Path, uid: int) -> None:
    """Check that no part of the path to `directory`, including itself, lies in a directory writable for
    everybody and belongs to another user."""
    for path in (*reversed(directory.parents), directory):
        try:
            above, found = os.stat(path.parent), os.lstat(path)
        except OSError:
            return  # to be made, or refused by that
        if above.st_mode & stat.S_IWOTH and found.st_uid not in (0, uid):
            raise TraceError(
                errno.EPERM,
                f"{path}: belongs to uid {found.st_uid}, who could replace the sockets; {_ANOTHER_DIRECTORY}",
            )


def _check_private(folder: Path, uid: int) -> None:
    """A folder in a directory writable for everybody: check that we own it, and that others have no
    access."""
    try:
        found = os.lstat(folder)
    except OSError as error:
        raise _failure(error, folder) from error
    if stat.S_ISLNK(found.st_mode):
        raise TraceError(errno.EPERM, f"{folder}: is a symbolic link; not used, it may be a trap")
    if not stat.S_ISDIR(found.st_mode):
        raise TraceError(errno.ENOTDIR, f"{folder}: is not a directory")
    if found.st_uid != uid:
        raise TraceError(errno.EPERM, f"{folder}: belongs to uid {found.st_uid}, not to us (uid {uid})")
    if stat.S_IMODE(found.st_mode) != 0o700:
        mode = stat.S_IMODE(found.st_mode)
        raise TraceError(errno.EPERM, f"{folder}: has mode {mode:04o} and must have 0700 (chmod 700)")


def _check_not_open_to_all(directory: Path) -> None:
    """A chosen directory may belong to anybody, but where everybody can write, everybody can replace the
    sockets."""
    try:
        found = os.stat(directory)
    except OSError as error:
        raise _failure(error, directory) from error
    if not stat.S_ISDIR(found.st_mode):
        raise TraceError(errno.ENOTDIR, f"{directory}: is not a directory")
    if found.st_mode & stat.S_IWOTH:
        raise TraceError(errno.EPERM, f"{directory}: everybody may write there; name a directory inside it")


@contextlib.contextmanager
def _lock_file(path: Path, directory: Path) -> Iterator[None]:
    """Hold `path` locked, with our pid in it; removed at the end, with the lock held. So after locking, check
    that `path` still is the locked file, else try again."""
    while True:
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise _failure(error, path) from error
        if not _try_lock(fd):
            pid = os.read(fd, 32).decode("ascii", "replace").strip() or "unknown"
            os.close(fd)
            raise TraceError(errno.EBUSY, f"{directory}: a daemon is already running there (pid {pid})")
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(fd), os.stat(path)):
                break
        os.close(fd)
    try:
        os.ftruncate(fd, 0)
        os.write(fd, b"%d\n" % os.getpid())
        yield
    finally:
        with contextlib.suppress(OSError):
            os.unlink(path)
        os.close(fd)


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _failure(error: OSError, path: Path) -> TraceError:
    return TraceError(error.errno or errno.EIO, f"{path}: {error.strerror}")
