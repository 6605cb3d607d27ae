"""Other processes' memory, by /proc/PID/mem. Compiled, since a bit is changed between two system calls
(remote_memory.h).

No call waits longer than DEADLINE_S, whatever the other process does: a page of a file whose server does not
answer, or a lock of the address space, hangs as long as that process likes, in a call that cannot be
cancelled. So each access runs on a thread of its own. If that sleeps after the time, it is abandoned, and its
Memory answers EFAULT until the access has ended.
"""

import os
import signal
import threading
from queue import SimpleQueue

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.errno cimport EAGAIN, EFAULT, EINVAL, ESRCH
from libc.stdint cimport uint64_t
from libc.string cimport memcpy, strerror
from posix.types cimport pid_t
from posix.unistd cimport close, pread

cdef extern from "<sys/syscall.h>" nogil:
    long syscall(long number, ...)
    long SYS_kcmp

cdef extern from "<linux/kcmp.h>" nogil:
    int KCMP_VM

cdef extern from "remote_memory.h" nogil:
    struct rm_files:
        int mem
        int maps
    int rm_open(pid_t tid, rm_files *files, uint64_t *stack_address, char *random)
    int RM_READ, RM_WRITE
    int rm_move(rm_files files, uint64_t address, void *data, size_t size, int way)
    int rm_read_string(rm_files files, uint64_t address, char *into, size_t limit)
    int rm_set_bit(rm_files files, pid_t pid, uint64_t address, unsigned size, unsigned bit, int on)

# Accesses take microseconds of a cpu; milliseconds if a page comes from the disk of a busy machine.
DEADLINE_S = 1.0  #: Final[float]
# Between two looks at a late thread that does not sleep.
cdef double LATE_S = 0.01

MAX_BYTES = 1 << 16  #: Final[int]
"""Limit in bytes of one read or write."""

cdef str HANGS = "the memory of the process does not answer"
cdef list idle = []     # the jobs of the idle thread, if there is one
os.register_at_fork(after_in_child=idle.clear)


cdef OSError os_error(int number):
    return OSError(number, strerror(number).decode())


@cython.final
cdef class _Files:
    """Descriptors. An access that hangs keeps them: else their numbers could be reused for other files."""

    cdef rm_files fds

    def __cinit__(self):
        self.fds.mem = self.fds.maps = -1

    def __dealloc__(self):
        if self.fds.mem >= 0:
            close(self.fds.mem)
        if self.fds.maps >= 0:
            close(self.fds.maps)


ctypedef int (*Work)(_Access) noexcept nogil


@cython.final
cdef class _Access:
    """A call of `work`, by a thread that does not hold the interpreter's lock (GIL) meanwhile."""

    cdef Work work
    cdef list keep              # the _Files in use
    cdef rm_files *fds
    cdef pid_t tid              # opening: any thread of the process; changing a bit: its first one
    cdef uint64_t address       # opening: out, of the 16 bytes made by exec
    cdef bytes data             # written to, or read from
    cdef size_t size
    cdef char *place            # of `data`
    cdef unsigned bit           # changing one: its number in the word of `size` bytes
    cdef bint on
    cdef Py_ssize_t at          # looking: index of the present one of `keep`
    cdef bint is_abandoned
    cdef int result             # 0 or -errno; of read_string the length
    cdef object ended           # a lock, free at the end
    cdef bint is_done
    cdef bint is_in_kernel
    cdef object thread          # id of the thread that runs it

    def __init__(self, list keep, bytes data=b""):
        self.keep = keep
        self.fds = &(<_Files>keep[0]).fds if keep else NULL
        self.data = data
        self.place = PyBytes_AS_STRING(data)
        self.size = PyBytes_GET_SIZE(data)
        self.ended = threading.Lock()
        self.ended.acquire()

    cdef bint run(self) except -1:
        """Run `work`. False: it still sleeps after DEADLINE_S. OSError: there is no thread for it."""
        wait = DEADLINE_S
        if idle:
            jobs = idle.pop()
        else:
            jobs = SimpleQueue()
            try:
                threading.Thread(target=_run_jobs, args=(jobs,), name="utracefs-access", daemon=True).start()
            except RuntimeError:
                raise os_error(EAGAIN) from None
        jobs.put(self)
        while not self.ended.acquire(timeout=wait):
            wait = LATE_S
            if self.is_in_kernel and sleeps(self.thread):
                self.is_abandoned = True
                return self.is_done
        return True


def _run_jobs(jobs):
    """A thread for accesses. It runs one after the other, and ends when another one is idle, too."""
    cdef _Access access
    cdef bint stays = True
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    while stays:
        access = jobs.get()
        access.thread = threading.get_native_id()
        with nogil:
            access.is_in_kernel = True
            access.result = access.work(access)
            access.is_in_kernel = False
        stays = not idle
        if stays:
            idle.append(jobs)
        access.is_done = True
        access.ended.release()
        access = None


cdef bint sleeps(thread) except -1:
    """Whether the thread hangs in the kernel. One that waits for a cpu does not, even if a busy machine keeps
    it waiting for seconds: after a few abandoned threads all memory of that user is refused for a minute
    (MAX_HANGS)."""
    try:
        with open(f"/proc/self/task/{thread}/stat", "rb") as file:
            return not file.read(512).rpartition(b")")[2].startswith(b" R")
    except OSError:
        return True


cdef int open_files(_Access a) noexcept nogil:
    return rm_open(a.tid, a.fds, &a.address, a.place)


cdef int read_bytes(_Access a) noexcept nogil:
    return rm_move(a.fds[0], a.address, a.place, a.size, RM_READ)


cdef int read_text(_Access a) noexcept nogil:
    return rm_read_string(a.fds[0], a.address, a.place, a.size - 1)


cdef int write_bytes(_Access a) noexcept nogil:
    return rm_move(a.fds[0], a.address, a.place, a.size, RM_WRITE)


cdef int change_bit(_Access a) noexcept nogil:
    return rm_set_bit(a.fds[0], a.tid, a.address, a.size, a.bit, a.on)


cdef int look(_Access a) noexcept nogil:
    """Which of these address spaces still exist: `mem` of an ended one reads as end of file. place: their
    descriptors, then the answers."""
    cdef int *mem = <int *>a.place
    cdef char byte
    while a.at < <Py_ssize_t>(a.size // sizeof(int)) and not a.is_abandoned:
        mem[a.at] = pread(mem[a.at], &byte, 1, 4096) != 0
        a.at += 1
    return 0


cdef class Memory:
    """The memory of thread `tid`'s present address space, until `close`.

    It refers to that address space only: after its end and after an exec nothing is read or written,
    whichever process has the pid then.

    OSError: EACCES, EPERM: the kernel does not allow it; ENOENT, ESRCH: no such thread, or it has ended;
    EMFILE; EFAULT: it hangs.
    """

    cdef _Files files        # None: closed
    cdef _Access hanging
    cdef readonly bytes fingerprint

    def __cinit__(self, pid_t tid):
        self.files = _Files()
        cdef _Access access = self.new_access(open_files, 16)
        access.tid = tid
        self.perform(access)
        self.fingerprint = access.address.to_bytes(8, "little") + access.data

    def close(self) -> None:
        """May be called twice."""
        self.files = self.hanging = None

    @property
    def hangs(self) -> bool:
        """Whether an abandoned access is still running."""
        if self.hanging is not None and self.hanging.is_done:
            self.hanging = None
        return self.hanging is not None

    cdef _Access new_access(self, Work work, Py_ssize_t size):
        """An access with room for `size` bytes. OSError: the memory was closed, or hangs."""
        if self.files is None:
            raise os_error(ESRCH)
        if self.hangs:
            raise OSError(EFAULT, HANGS)
        cdef _Access access = _Access([self.files], PyBytes_FromStringAndSize(NULL, size))
        access.work = work
        return access

    cdef int perform(self, _Access access) except -1:
        """Run the access. OSError: it hangs, or it failed."""
        if not access.run():
            self.hanging = access
            raise OSError(EFAULT, HANGS)
        if access.result < 0:
            raise os_error(-access.result)
        return 0

    def read(self, uint64_t address, size_t size) -> bytes:
        """Read bytes. OSError: EFAULT where the program could not read them itself, ESRCH when the address
        space has ended."""
        if size > <size_t>MAX_BYTES:
            raise os_error(EINVAL)
        cdef _Access access = self.new_access(read_bytes, size)
        access.address = address
        self.perform(access)
        return access.data

    def read_string(self, uint64_t address, size_t limit) -> bytes:
        """Read the bytes before the first NUL, at most `limit`. OSError: as `read`; EINVAL, there are
        more."""
        if limit >= <size_t>MAX_BYTES:
            raise os_error(EINVAL)
        cdef _Access access = self.new_access(read_text, limit + 1)
        access.address = address
        self.perform(access)
        return access.data[:access.result]

    def write(self, uint64_t address, bytes data not None) -> None:
        """Write bytes. OSError: EFAULT where the program could not write itself, possibly with a part
        written; ESRCH."""
        if len(data) > MAX_BYTES:
            raise os_error(EINVAL)
        cdef _Access access = self.new_access(write_bytes, len(data))
        memcpy(access.place, PyBytes_AS_STRING(data), access.size)
        access.address = address
        self.perform(access)

    def set_bit(self, pid_t pid, uint64_t address, unsigned size, unsigned bit, bint on) -> None:
        """Set or clear bit `bit` of the word of `size` bytes at `address`: its byte is read and written,
        which undoes a change of its other bits in the 300 ns between.

        OSError: EFAULT: not writable for the program, or no memory; ESRCH: it has ended.
        """
        if bit >= 8 * size:
            raise os_error(EINVAL)
        cdef _Access access = self.new_access(change_bit, 0)
        access.tid = pid
        access.address = address
        access.size = size
        access.bit = bit
        access.on = on
        self.perform(access)

    def __reduce__(self):
        raise TypeError("a memory belongs to one process")


def ended(list memories not None: list[Memory]) -> list[Memory]:
    """The memories whose address space is gone: all its processes have ended, or execed. A memory that hangs,
    now or since earlier, counts as alive."""
    cdef Memory each
    cdef list asked = [each for each in memories if each.files is not None and not each.hangs]
    cdef list gone = [each for each in memories if each.files is None]
    cdef _Access access = _Access(
        [each.files for each in asked], PyBytes_FromStringAndSize(NULL, len(asked) * sizeof(int))
    )
    cdef int *answers = <int *>access.place
    cdef Py_ssize_t i, nr
    access.work = look
    for i in range(len(asked)):
        answers[i] = (<Memory>asked[i]).files.fds.mem
    nr = len(asked) if access.run() else access.at
    if nr < len(asked):
        (<Memory>asked[nr]).hanging = access
    for i in range(nr):
        if not answers[i]:
            gone.append(asked[i])
    return gone


def same_memory(pid_t one, pid_t other) -> bool:
    """Whether two processes have the same address space, as after vfork (kcmp(2)). False also without
    permission; then their address space is listed twice."""
    return syscall(SYS_kcmp, one, other, KCMP_VM, 0, 0) == 0
