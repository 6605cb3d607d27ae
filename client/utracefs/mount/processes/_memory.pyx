"""Other processes' memory, by /proc/PID/mem. Compiled, since a bit is changed between two system calls
(remote_memory.h).

No call waits longer than DEADLINE_NS, whatever the other process does: each access runs on its own thread
(deed.h). If it sleeps after that time, it is abandoned, and its Memory answers EFAULT until the access has
ended.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.errno cimport EFAULT, EINVAL, ESRCH, errno
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memcpy, strerror
from posix.types cimport pid_t
from posix.unistd cimport close

cdef extern from "<sys/syscall.h>" nogil:
    long syscall(long number, ...)
    long SYS_kcmp

cdef extern from "<linux/kcmp.h>" nogil:
    int KCMP_VM

cdef extern from "process_list.h" nogil:
    int pl_find(uint64_t start_stack, pid_t *pids, int room)

cdef extern from "deed.h" nogil:
    struct rm_bit:
        int mem
        int maps
        pid_t pid
        uint64_t byte
        unsigned char mask
        int on
        int atomic
    struct deed:
        uint32_t at
        uint32_t count
        int result
        pid_t tid
        int mem
        int maps
        int closes
        uint64_t address
        uint64_t stack_address
        rm_bit bit
        size_t size
        char *data
    ctypedef void (*deed_work)(deed *) noexcept nogil
    deed *deed_new(deed_work work, size_t size)
    void deed_let_go(deed *d)
    int deed_is_done(const deed *d)
    int deed_run(deed *d, int64_t timeout_ns)
    void deed_read(deed *d) noexcept
    void deed_read_string(deed *d) noexcept
    void deed_write(deed *d) noexcept
    void deed_set_bit(deed *d) noexcept
    void deed_open(deed *d) noexcept
    void deed_look(deed *d) noexcept
    uint64_t rm_byte_of(uint64_t address, unsigned size, unsigned bit)

# Accesses take microseconds of a cpu; milliseconds if a page comes from the disk of a busy machine.
cdef int64_t DEADLINE_NS = 1_000_000_000

MAX_BYTES = 1 << 16
"""Limit in bytes of one read or write."""


cdef OSError os_error(int number):
    return OSError(number, strerror(number).decode())


cdef deed *new_deed(deed_work work, size_t size) except NULL:
    cdef deed *d = deed_new(work, size)
    if d == NULL:
        raise MemoryError
    return d


cdef class Memory:
    """The memory of thread `tid`'s present address space, until `close`.

    It refers to that address space only: after its end and after an exec nothing is read or written,
    whichever process has the pid then.

    OSError: EACCES, EPERM: the kernel does not allow it; ENOENT, ESRCH: no such thread, or it has ended;
    EMFILE; EFAULT: it hangs.
    """

    def __cinit__(self, pid_t tid):
        self.mem = self.maps = -1
        cdef deed *d = new_deed(deed_open, 16)
        d.tid = tid
        try:
            self.perform(d)
        except BaseException:
            d.closes = 1
            deed_let_go(d)
            raise
        if d.result < 0:
            d.closes = 1
            number = -d.result
            deed_let_go(d)
            raise os_error(number)
        self.mem = d.mem
        self.maps = d.maps
        self.fingerprint = d.stack_address.to_bytes(8, "little") + PyBytes_FromStringAndSize(d.data, 16)
        deed_let_go(d)

    def __dealloc__(self):
        self.end()

    def close(self):
        """May be called twice."""
        self.end()

    cdef void end(self) noexcept:
        if self.hanging != NULL:
            # The thread closes the descriptors: they are in use.
            self.hanging.mem, self.hanging.maps, self.hanging.closes = self.mem, self.maps, 1
            deed_let_go(self.hanging)
            self.hanging = NULL
        else:
            if self.mem >= 0:
                close(self.mem)
            if self.maps >= 0:
                close(self.maps)
        self.mem = self.maps = -1

    @property
    def hangs(self):
        """Whether an abandoned access is still running."""
        if self.hanging != NULL and deed_is_done(self.hanging):
            deed_let_go(self.hanging)
            self.hanging = NULL
        return self.hanging != NULL

    cdef int perform(self, deed *d) except -1:
        """Run it. OSError when it cannot be started, or has not ended; then it may end later."""
        cdef int done
        with nogil:
            done = deed_run(d, DEADLINE_NS)
        if done == 1:
            return 0
        if done < 0:
            raise os_error(-done)
        raise OSError(EFAULT, "the memory of the process does not answer")

    cdef int use(self, deed *d) except -1:
        """Like `perform`, with our descriptors. OSError also when it failed; then the caller no longer owns
        `d`: it is kept if it hangs, else freed."""
        if self.mem < 0 or self.hangs:
            deed_let_go(d)
            raise OSError(ESRCH if self.mem < 0 else EFAULT, "the memory of the process does not answer")
        d.mem = d.bit.mem = self.mem
        d.maps = d.bit.maps = self.maps
        try:
            self.perform(d)
        except BaseException:
            if deed_is_done(d):
                deed_let_go(d)
            else:
                self.hanging = d
            raise
        number = -d.result
        if number > 0:
            deed_let_go(d)
            raise os_error(number)
        return 0

    def read(self, uint64_t address, size_t size):
        """Read bytes. OSError: EFAULT where the program could not read them itself, ESRCH when the address
        space has ended."""
        if size > <size_t>MAX_BYTES:
            raise os_error(EINVAL)
        cdef deed *d = new_deed(deed_read, size)
        d.address = address
        self.use(d)
        try:
            return PyBytes_FromStringAndSize(d.data, size)
        finally:
            deed_let_go(d)

    def read_string(self, uint64_t address, size_t limit):
        """Read the bytes before the first NUL, at most `limit`. OSError: as `read`; EINVAL, there are
        more."""
        if limit >= <size_t>MAX_BYTES:
            raise os_error(EINVAL)
        cdef deed *d = new_deed(deed_read_string, limit + 1)
        d.address = address
        self.use(d)
        try:
            return PyBytes_FromStringAndSize(d.data, d.result)
        finally:
            deed_let_go(d)

    def write(self, uint64_t address, bytes data not None):
        """Write bytes. OSError: EFAULT where the program could not write itself, possibly with a part
        written; ESRCH."""
        cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
        if size > MAX_BYTES:
            raise os_error(EINVAL)
        cdef deed *d = new_deed(deed_write, size)
        d.address = address
        memcpy(d.data, PyBytes_AS_STRING(data), size)
        self.use(d)
        deed_let_go(d)

    def set_bit(self, pid_t pid, uint64_t address, unsigned size, unsigned bit, bint on):
        """Set or clear bit `bit` of the word of `size` bytes at `address`. Returns whether no change of its
        other bits was undone.

        None is if the file of a shared mapping can be opened: the page is mapped here, too, and changed
        atomically. Otherwise one byte is read and written, which undoes a change of its other bits in the
        300 ns between.

        OSError: EFAULT: not writable for the program, or no memory; ESRCH: it has ended.
        """
        if bit >= 8 * size:
            raise os_error(EINVAL)
        cdef deed *d = new_deed(deed_set_bit, 0)
        d.bit.pid = pid
        d.bit.byte = rm_byte_of(address, size, bit)
        d.bit.mask = 1 << bit % 8
        d.bit.on = on
        self.use(d)
        is_atomic = d.bit.atomic != 0
        deed_let_go(d)
        return is_atomic

    def __reduce__(self):
        raise TypeError("a memory belongs to one process")


def ended(list memories not None):
    """The ended ones: all processes with this address space have ended, or execed. One that hangs, now or
    before, counts as alive."""
    cdef Memory each
    cdef list asked = [each for each in memories if each.mem >= 0 and not each.hangs]
    cdef list gone = [each for each in memories if each.mem < 0]
    cdef deed *d = deed_new(deed_look, len(asked) * sizeof(int))
    cdef int *answers
    cdef int done
    cdef uint32_t i
    if d == NULL:
        raise MemoryError
    answers = <int *>d.data
    d.count = len(asked)
    for i in range(d.count):
        answers[i] = (<Memory>asked[i]).mem
    with nogil:
        done = deed_run(d, DEADLINE_NS)
    if done < 0:
        deed_let_go(d)
        raise os_error(-done)
    for i in range(d.count if done else d.at):
        if not answers[i]:
            gone.append(asked[i])
    if not done and d.at < d.count:
        (<Memory>asked[d.at]).hanging = d
    else:
        deed_let_go(d)
    return gone


def same_memory(pid_t one, pid_t other):
    """Whether two processes have the same address space, as after vfork (kcmp(2)). False also without
    permission: a page of both is then known twice."""
    return syscall(SYS_kcmp, one, other, KCMP_VM, 0, 0) == 0


def with_start_stack(uint64_t start_stack):
    """Pids of the processes whose stack begins there (field 28 of /proc/PID/stat): relatives by fork of one
    exec. 1,024 at most. OSError when /proc cannot be read."""
    cdef pid_t pids[1024]
    cdef int found, i
    with nogil:
        found = pl_find(start_stack, pids, 1024)
    if found < 0:
        raise os_error(errno)
    return [pids[i] for i in range(min(found, 1024))]
