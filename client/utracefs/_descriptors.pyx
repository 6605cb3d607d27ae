"""Descriptors of ours in somebody else's process, and the few calls on a Unix socket that a session needs.

The program may close any number and put something of its own there, so each is checked before it is used
(descriptor.h says how). Here and not with Python's socket module: a monkey-patched one (gevent, eventlet)
would switch greenlets, its objects close their number whatever stands there, and its import is a large part
of what a program pays for its first event.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.errno cimport EAGAIN, EBADF, EINTR, ENAMETOOLONG, errno
from libc.string cimport memcpy, memset, strerror

cdef extern from "<sys/uio.h>" nogil:
    struct iovec:
        void *iov_base
        size_t iov_len

cdef extern from "<sys/un.h>" nogil:
    struct sockaddr_un:
        unsigned short sun_family
        char sun_path[108]

cdef extern from "<sys/socket.h>" nogil:
    struct msghdr:
        iovec *msg_iov
        size_t msg_iovlen
        void *msg_control
        size_t msg_controllen
        int msg_flags
    struct cmsghdr:
        size_t cmsg_len
        int cmsg_level
        int cmsg_type
    cmsghdr *CMSG_FIRSTHDR(msghdr *message)
    cmsghdr *CMSG_NXTHDR(msghdr *message, cmsghdr *one)
    unsigned char *CMSG_DATA(cmsghdr *one)
    size_t CMSG_SPACE(size_t size)
    size_t CMSG_LEN(size_t size)
    int socket(int domain, int kind, int protocol)
    int connect(int fd, const void *address, unsigned size)
    int setsockopt(int fd, int level, int name, const void *value, unsigned size)
    ssize_t recvmsg(int fd, msghdr *message, int flags)
    ssize_t sendmsg(int fd, const msghdr *message, int flags)
    int AF_UNIX, SOCK_STREAM, SOCK_NONBLOCK, SOCK_CLOEXEC, SOL_SOCKET, SO_SNDBUF, SCM_RIGHTS
    int MSG_CMSG_CLOEXEC, MSG_DONTWAIT, MSG_NOSIGNAL

cdef enum:
    SEND_BUFFER = 1 << 20
    RECEIVE_BYTES = 64 * 1024
    # An answer brings two at most.
    MAX_DESCRIPTORS = 4


cdef OSError os_error(int number):
    return OSError(number, strerror(number).decode())


cdef class Descriptor:
    """One descriptor, taken over: `fd` may be another number than was given, and belongs to this object.

    fd: any open descriptor. beside: the one that came before it. An eventfd counts as ours only as long as
    that one does; for other kinds it does not matter. OSError: there was none, or no room; `fd` is closed all
    the same.

    It is not closed by its end: in a forked child, and in a thread that was stopped in the middle, an object
    may end at any time, and the number may be somebody else's.
    """

    def __cinit__(self, int fd, Descriptor beside=None):
        cdef int error = ut_take(&self.own, fd)
        if error:
            raise os_error(-error)
        if beside is not None and self.own.is_anonymous:
            self.beside = beside
            self.own.beside = &beside.own

    @property
    def fd(self):
        """The number, -1 once it is closed."""
        return self.own.fd

    def is_ours(self):
        """Whether the number still stands for what it stood for."""
        return ut_is_ours(&self.own)

    def close(self):
        """Close it, unless it is not ours any more. Twice is harmless."""
        ut_close(&self.own)

    def __reduce__(self):
        raise TypeError("a descriptor belongs to one process")


def connect_to(str path not None):
    """A Descriptor: a stream socket connected to this path, which never blocks. OSError as connect(2) says;
    EAGAIN is a full backlog."""
    cdef sockaddr_un address
    cdef bytes name = path.encode("utf-8", "surrogateescape")
    cdef int size = SEND_BUFFER
    cdef int error
    if PyBytes_GET_SIZE(name) >= <Py_ssize_t>sizeof(address.sun_path):
        raise os_error(ENAMETOOLONG)
    memset(&address, 0, sizeof(address))
    address.sun_family = AF_UNIX
    memcpy(address.sun_path, PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name))
    error = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)
    if error < 0:
        raise os_error(errno)
    made = Descriptor(error)
    # A Unix socket connects at once or not at all.
    if connect((<Descriptor>made).own.fd, &address, sizeof(address)) < 0:
        error = errno
        made.close()
        raise os_error(error)
    setsockopt((<Descriptor>made).own.fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof(size))
    return made


def receive(Descriptor sock not None, dict into not None):
    """The bytes that are there: b"" at the end of the connection or when it is broken, None when there are
    none yet.

    Descriptors that came with them are put into `into` as number: Descriptor, in their order, each beside the
    one before it.
    """
    cdef unsigned char control[256]
    cdef char data[RECEIVE_BYTES]
    cdef iovec piece
    cdef msghdr message
    cdef cmsghdr *one
    cdef int *fds
    cdef size_t i
    cdef ssize_t got
    cdef Descriptor before = None
    piece.iov_base = data
    piece.iov_len = RECEIVE_BYTES
    memset(&message, 0, sizeof(message))
    message.msg_iov = &piece
    message.msg_iovlen = 1
    message.msg_control = control
    message.msg_controllen = CMSG_SPACE(MAX_DESCRIPTORS * sizeof(int))
    if not ut_is_ours(&sock.own):
        return b""
    got = recvmsg(sock.own.fd, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT)
    if got < 0:
        return None if errno == EAGAIN or errno == EINTR else b""
    one = CMSG_FIRSTHDR(&message)
    while one != NULL:
        if one.cmsg_level == SOL_SOCKET and one.cmsg_type == SCM_RIGHTS:
            fds = <int *>CMSG_DATA(one)
            for i in range((one.cmsg_len - CMSG_LEN(0)) // sizeof(int)):
                try:
                    before = Descriptor(fds[i], before)
                except OSError:
                    continue  # no room for it: it will be missed
                into[before.fd] = before
        one = CMSG_NXTHDR(&message, one)
    return PyBytes_FromStringAndSize(data, got)


def send_with(Descriptor sock not None, bytes data not None, list fds not None):
    """Send bytes with descriptors; how many bytes went. OSError, EBADF when one of them is not ours any more.
    """
    cdef unsigned char control[256]
    cdef iovec piece
    cdef msghdr message
    cdef cmsghdr *one
    cdef Descriptor each
    cdef ssize_t sent
    cdef int i = 0
    if not ut_is_ours(&sock.own) or len(fds) > MAX_DESCRIPTORS:
        raise os_error(EBADF)
    memset(&message, 0, sizeof(message))
    memset(control, 0, sizeof(control))
    piece.iov_base = PyBytes_AS_STRING(data)
    piece.iov_len = PyBytes_GET_SIZE(data)
    message.msg_iov = &piece
    message.msg_iovlen = 1
    if fds:
        message.msg_control = control
        message.msg_controllen = CMSG_SPACE(len(fds) * sizeof(int))
        one = CMSG_FIRSTHDR(&message)
        one.cmsg_level = SOL_SOCKET
        one.cmsg_type = SCM_RIGHTS
        one.cmsg_len = CMSG_LEN(len(fds) * sizeof(int))
    for each in fds:
        if not ut_is_ours(&each.own):
            raise os_error(EBADF)
        (<int *>CMSG_DATA(one))[i] = each.own.fd
        i += 1
    # MSG_NOSIGNAL: the daemon may be gone by now, and SIGPIPE may be what ends the program.
    sent = sendmsg(sock.own.fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL)
    if sent < 0:
        raise os_error(errno)
    return sent
