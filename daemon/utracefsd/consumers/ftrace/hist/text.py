"""The `hist` file, as printed by hist_show() of trace_events_hist.c for a trigger."""

import platform
import re
import struct
from collections.abc import Callable, Iterator, Sequence

from utracefsd.consumers.ftrace.hist._hist import Entries
from utracefsd.consumers.ftrace.hist.definition import Definition, SortKey
from utracefsd.consumers.ftrace.hist.fields import Flag, HistField

_MASK = (1 << 64) - 1
_PIECE = 256
"""Entries printed at once: about half a millisecond."""

_CONTROL = re.compile(rb"[\x00-\x1f\x7f]")

_BAR = 20
"""Columns of `.graph`."""

Entry = tuple[bytes, tuple[int, ...]]
"""A key and its words: hits, then a sum for each value."""


def hist_pieces(
    definition: Definition,
    entries: Entries,
    line: bytes,
    comm: Callable[[int], bytes],
    *,
    more: Callable[[Entry], bytes] = lambda entry: b"",
    below: bytes = b"",
) -> Iterator[bytes]:
    """One trigger's part of the file, some entries at a time. line: of `trigger`, with its state and newline.
    more: the actions' text for an entry. below: their text behind all entries."""
    yield b"# event histogram\n#\n# trigger info: " + line + b"#\n\n"
    entries.sort(_sort_by(definition, key) for key in definition.sort)
    show = _entry_printer(definition, entries.stats(), comm)
    for start in range(0, len(entries), _PIECE):
        yield b"".join([show(one) + more(one) + b"\n" for one in entries.piece(start, start + _PIECE)])
    yield below + b"\nTotals:\n    Hits: %d\n    Entries: %d\n    Dropped: %d\n" % (
        entries.hits,
        len(entries),
        entries.drops,
    )


def _sort_by(definition: Definition, key: SortKey) -> tuple[bool, bool, int, int, bool, bool]:
    """The argument of `Entries.sort`. Stacks have no frames: they are all equal."""
    if key.index <= len(definition.values):
        return False, False, key.index * 8, 8, False, key.descending
    field = definition.column(key)
    is_string = Flag.STACKTRACE in field.flags
    size, signed = field.size, field.signed
    if field.field is not None and Flag.CPU not in field.flags:
        is_string = is_string or field.field.is_string
        signed = field.field.signed
        size = field.size if is_string else field.field.size
    return is_string, True, field.offset, size, signed, key.descending


def _entry_printer(
    definition: Definition, stats: Sequence[tuple[int, int]], comm: Callable[[int], bytes]
) -> Callable[[Entry], bytes]:
    """hist_trigger_entry_print(). The kind of each field is checked once, not for each entry."""
    key_of = _keys_printer(definition, comm)
    shows_hits = not definition.parts.no_hitcount
    values = [
        (i, _value_printer(value, *stats[i]))
        for i, value in enumerate(definition.values, 1)
        if i < len(stats) and Flag.EXPR not in value.flags
    ]

    def show(entry: Entry) -> bytes:
        key, words = entry
        text = key_of(key)
        if shows_hits:
            text += b" hitcount: %10d" % words[0]
        for i, value in values:
            text += value(words[i])
        return text

    return show


def key_text(definition: Definition, key: bytes, comm: Callable[[int], bytes]) -> bytes:
    """`{ pid:         11 }` (hist_trigger_print_key())."""
    return _keys_printer(definition, comm)(key)


def _keys_printer(definition: Definition, comm: Callable[[int], bytes]) -> Callable[[bytes], bytes]:
    several_lines = any(Flag.STACKTRACE in field.flags for field in definition.keys)
    end = b"}" if several_lines else b" }"
    parts = [
        (field.offset, field.offset + field.size, _key_printer(field, comm)) for field in definition.keys
    ]
    return lambda key: b"{ " + b", ".join([show(key[start:stop]) for start, stop, show in parts]) + end


def _key_printer(field: HistField, comm: Callable[[int], bytes]) -> Callable[[bytes], bytes]:
    """Prints one key's bytes."""
    name, flags, buckets = field.shown_name(), field.flags, field.buckets
    if Flag.STACKTRACE in flags:
        return lambda key: b"common_stacktrace:\n"
    numbers: dict[Flag, Callable[[int], bytes]] = {
        Flag.HEX: lambda number: b"%s: %x" % (name, number),
        # An address without a kernel symbol; the field width is that of the output of %ps for it.
        Flag.SYM: lambda number: b"%s: [%x] %-45s" % (name, number, b"0x%x" % number),
        Flag.SYM_OFFSET: lambda number: b"%s: [%x] %-55s" % (name, number, b"0x%x" % number),
        Flag.EXECNAME: lambda number: b"%s: %-16s[%10d]" % (name, _on_one_line(comm(number)), number),
        Flag.SYSCALL: lambda number: b"%s: %-30s[%3d]" % (name, syscall_name(number), number),
        Flag.LOG2: lambda number: b"%s: ~ 2^%-2d" % (name, number),
        Flag.BUCKET: lambda number: b"%s: ~ %d-%d" % (name, number, (number + buckets - 1) & _MASK),
    }
    for flag, show in numbers.items():
        if flag in flags:
            return lambda key: show(int.from_bytes(key[:8], "little"))
    if field.is_string:
        return lambda key: b"%s: %-50s" % (name, _on_one_line(key.partition(b"\0")[0]))
    if field.field is not None and field.field.is_float:
        number = struct.Struct("<d" if field.field.size == 8 else "<f")
        return lambda key: b"%s: %10s" % (name, repr(number.unpack_from(key)[0]).encode())
    return lambda key: b"%s: %10d" % (name, int.from_bytes(key[:8], "little"))


def _on_one_line(text: bytes) -> bytes:
    """Control characters as `\\x0a`: a program's text could look like other entries, even like another
    histogram. The kernel prints them."""
    return _CONTROL.sub(lambda found: b"\\x%02x" % ord(found[0]), text)


def _value_printer(field: HistField, most: int, total: int) -> Callable[[int], bytes]:
    """hist_trigger_print_val(), and the blanks before it."""
    name = field.shown_name()
    if Flag.PERCENT in field.flags:

        def show_percent(value: int) -> bytes:
            part = _percentage(value, total)
            if part is None:
                return b"  %s (%%):[ERROR]" % name
            return b"  %s (%%): %3d.%02d" % (name, part // 100, part % 100)

        return show_percent
    if Flag.GRAPH in field.flags:

        def show_bar(value: int) -> bytes:
            part = _percentage(value, most)
            bar = b"[ERROR]" if part is None else b"#" * min(_BAR, part * _BAR // 10000)
            return b"  %s: %s" % (name, bar.rjust(_BAR) if part is None else bar.ljust(_BAR))

        return show_bar
    if Flag.HEX in field.flags:
        return lambda value: b"  %s: %10x" % (name, value)
    return lambda value: b"  %s: %10d" % (name, value)


def _percentage(value: int, total: int) -> int | None:
    """Hundredths of a percent; None: undefined (__get_percentage())."""
    if total and value < _MASK // 10000:
        return (value * 10000 // total) & 0xFFFFFFFF
    total //= 10000
    if total:
        return (value // total) & 0xFFFFFFFF
    return None if value else 0


_UNKNOWN = b"unknown_syscall"
"""Names are those of x86-64 in syscalls_metadata, since the number was written by a program on this machine;
on others all are unknown. They are of arch/x86/entry/syscalls/syscall_64.tbl of Linux 6.12, `-` for none."""

_FIRST = """
    read write open close newstat newfstat newlstat poll lseek mmap mprotect munmap brk rt_sigaction
    rt_sigprocmask rt_sigreturn ioctl pread64 pwrite64 readv writev access pipe select sched_yield
    mremap msync mincore madvise shmget shmat shmctl dup dup2 pause nanosleep getitimer alarm
    setitimer getpid sendfile64 socket connect accept sendto recvfrom sendmsg recvmsg shutdown bind
    listen getsockname getpeername socketpair setsockopt getsockopt clone fork vfork execve exit
    wait4 kill newuname semget semop semctl shmdt msgget msgsnd msgrcv msgctl fcntl flock fsync
    fdatasync truncate ftruncate getdents getcwd chdir fchdir rename mkdir rmdir creat link unlink
    symlink readlink chmod fchmod chown fchown lchown umask gettimeofday getrlimit getrusage sysinfo
    times ptrace getuid syslog getgid setuid setgid geteuid getegid setpgid getppid getpgrp setsid
    setreuid setregid getgroups setgroups setresuid getresuid setresgid getresgid getpgid setfsuid
    setfsgid getsid capget capset rt_sigpending rt_sigtimedwait rt_sigqueueinfo rt_sigsuspend
    sigaltstack utime mknod uselib personality ustat statfs fstatfs sysfs getpriority setpriority
    sched_setparam sched_getparam sched_setscheduler sched_getscheduler sched_get_priority_max
    sched_get_priority_min sched_rr_get_interval mlock munlock mlockall munlockall vhangup
    modify_ldt pivot_root - prctl arch_prctl adjtimex setrlimit chroot sync acct settimeofday mount
    umount swapon swapoff reboot sethostname setdomainname iopl ioperm - init_module delete_module -
    - quotactl - - - - - - gettid readahead setxattr lsetxattr fsetxattr getxattr lgetxattr
    fgetxattr listxattr llistxattr flistxattr removexattr lremovexattr fremovexattr tkill time futex
    sched_setaffinity sched_getaffinity - io_setup io_destroy io_getevents io_submit io_cancel - -
    epoll_create - - remap_file_pages getdents64 set_tid_address restart_syscall semtimedop
    fadvise64 timer_create timer_settime timer_gettime timer_getoverrun timer_delete clock_settime
    clock_gettime clock_getres clock_nanosleep exit_group epoll_wait epoll_ctl tgkill utimes - mbind
    set_mempolicy get_mempolicy mq_open mq_unlink mq_timedsend mq_timedreceive mq_notify
    mq_getsetattr kexec_load waitid add_key request_key keyctl ioprio_set ioprio_get inotify_init
    inotify_add_watch inotify_rm_watch migrate_pages openat mkdirat mknodat fchownat futimesat
    newfstatat unlinkat renameat linkat symlinkat readlinkat fchmodat faccessat pselect6 ppoll
    unshare set_robust_list get_robust_list splice tee sync_file_range vmsplice move_pages utimensat
    epoll_pwait signalfd timerfd_create eventfd fallocate timerfd_settime timerfd_gettime accept4
    signalfd4 eventfd2 epoll_create1 dup3 pipe2 inotify_init1 preadv pwritev rt_tgsigqueueinfo
    perf_event_open recvmmsg fanotify_init fanotify_mark prlimit64 name_to_handle_at
    open_by_handle_at clock_adjtime syncfs sendmmsg setns getcpu process_vm_readv process_vm_writev
    kcmp finit_module sched_setattr sched_getattr renameat2 seccomp getrandom memfd_create
    kexec_file_load bpf execveat userfaultfd membarrier mlock2 copy_file_range preadv2 pwritev2
    pkey_mprotect pkey_alloc pkey_free statx io_pgetevents rseq
"""

_SECOND_AT = 424

_SECOND = """
    pidfd_send_signal io_uring_setup io_uring_enter io_uring_register open_tree move_mount fsopen
    fsconfig fsmount fspick pidfd_open clone3 close_range openat2 pidfd_getfd faccessat2
    process_madvise epoll_pwait2 mount_setattr quotactl_fd landlock_create_ruleset landlock_add_rule
    landlock_restrict_self memfd_secret process_mrelease futex_waitv set_mempolicy_home_node
    cachestat fchmodat2 map_shadow_stack futex_wake futex_wait futex_requeue statmount listmount
    lsm_get_self_attr lsm_set_self_attr lsm_list_modules mseal
"""

_NAMES = {
    number: b"sys_" + name.encode()
    for start, names in ((0, _FIRST), (_SECOND_AT, _SECOND))
    for number, name in enumerate(names.split(), start)
    if name != "-"
}


def syscall_name(number: int, machine: str = platform.machine()) -> bytes:
    """`sys_write`, or `unknown_syscall`."""
    return _NAMES.get(number, _UNKNOWN) if machine == "x86_64" else _UNKNOWN
