/* A disk that fails, and a machine that crashes: preloaded into a process, it counts the calls that change
   the files of one folder. fsync(2) there writes nothing, and only notes what would be on the disk.

       DISK_FOLDER  the absolute path of the folder
       DISK_AT      the number of the call, from 1 on, that has the fault
       DISK_FAULT   kill: SIGKILL before the call; after: behind it; torn: after half of a write; EIO,
                    ENOSPC: it fails, a write after half of it. Only calls that can have it are counted
       DISK_TIMES   so many calls in succession fail (1)
       DISK_LOSES   what a crash of the machine loses at the SIGKILL, also at one that the process sends to
                    itself, of all that has not been synced:
                        contents  what was written, not the names of files
                        all       both: the folder is as at its last fsync(2)
                        odd, even every second write or ftruncate(2): disks write in any order
                        halves    the second half of each write

   The variables are read at the first such call of a process, also of a fork. For one thread. Writes to a
   mapping are not counted, and not lost: SQLite maps only the index of its log, which it makes anew. */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define FILES 64

enum kind { WRITE, CUT, CREATE, REMOVE, RENAME, SYNC };

enum verdict { PASS, AFTER, TORN, ERROR };

struct change {
    enum kind kind;
    int file; /* index in `files` */
    off_t at, length; /* place; length of the file before */
    size_t size; /* bytes of `was` and `is` */
    char *was, *is;
    char *path, *to, *hidden; /* hidden: name of the file that was removed or replaced */
};

struct file {
    dev_t dev;
    ino_t ino;
    int fd; /* never closed: closing any descriptor of a file gives up the locks of the process */
};

unsigned long disk_calls;

static pid_t owner;
static const char *folder, *fault, *loses;
static unsigned long fault_at, times;
static struct change *changes;
static size_t nr_changes;
static struct file files[FILES];
static size_t nr_files;

static const char *variable(const char *name, const char *otherwise)
{
    const char *found = getenv(name);
    return found ? found : otherwise;
}

static bool is_inside(const char *path)
{
    if (owner != getpid()) {
        owner = getpid();
        folder = variable("DISK_FOLDER", "");
        fault = variable("DISK_FAULT", "");
        loses = variable("DISK_LOSES", "");
        fault_at = strtoul(variable("DISK_AT", "0"), NULL, 10);
        times = strtoul(variable("DISK_TIMES", "1"), NULL, 10);
        disk_calls = 0;
    }
    size_t length = strlen(folder);
    return length && !strncmp(path, folder, length) && (path[length] == '/' || !path[length]);
}

static bool is_fd_inside(int fd)
{
    char name[32], path[PATH_MAX];
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(name, path, sizeof path - 1);
    if (length < 0)
        return false;
    path[length] = 0;
    return is_inside(path);
}

static bool exists(const char *path)
{
    struct stat found;
    return !lstat(path, &found);
}

/* Losing changes */

static int file_of(int fd)
{
    struct stat found;
    char name[32];
    if (fstat(fd, &found))
        abort();
    for (size_t i = 0; i < nr_files; i++)
        if (files[i].dev == found.st_dev && files[i].ino == found.st_ino)
            return (int)i;
    if (nr_files == FILES)
        abort();
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    int own = (int)syscall(SYS_openat, AT_FDCWD, name, O_RDWR | O_CLOEXEC, 0);
    if (own < 0)
        abort();
    files[nr_files] = (struct file){found.st_dev, found.st_ino, own};
    return (int)nr_files++;
}

static struct change *note(enum kind kind)
{
    static struct change ignored;
    if (!*loses)
        return &ignored;
    changes = realloc(changes, (nr_changes + 1) * sizeof *changes);
    struct change *change = &changes[nr_changes++];
    *change = (struct change){.kind = kind, .file = -1};
    return change;
}

static void note_content(enum kind kind, int fd, const void *bytes, size_t size, off_t at)
{
    if (!*loses)
        return;
    struct stat found;
    struct change *change = note(kind);
    change->file = file_of(fd);
    fstat(fd, &found);
    change->at = at;
    change->length = found.st_size;
    change->size = kind == WRITE ? size : found.st_size > at ? (size_t)(found.st_size - at) : 0;
    change->was = calloc(1, change->size + 1);
    if (pread(files[change->file].fd, change->was, change->size, at) < 0)
        abort();
    if (kind == WRITE) {
        change->is = malloc(size + 1);
        memcpy(change->is, bytes, size);
    }
}

static void put(int fd, const char *bytes, size_t size, off_t at)
{
    if (syscall(SYS_pwrite64, fd, bytes, size, at) != (long)size)
        abort();
}

static void undo(const struct change *change)
{
    int fd = change->file < 0 ? -1 : files[change->file].fd;
    switch (change->kind) {
    case WRITE:
        if (change->at < change->length)
            put(fd, change->was, change->size, change->at);
        syscall(SYS_ftruncate, fd, change->length);
        break;
    case CUT:
        syscall(SYS_ftruncate, fd, change->length);
        put(fd, change->was, change->size, change->at);
        break;
    case CREATE:
        syscall(SYS_unlink, change->path);
        break;
    case REMOVE:
        syscall(SYS_rename, change->hidden, change->path);
        break;
    case RENAME:
        syscall(SYS_rename, change->to, change->path);
        if (change->hidden)
            syscall(SYS_rename, change->hidden, change->to);
        break;
    case SYNC:
        break;
    }
}

static void redo(const struct change *change, size_t number)
{
    int fd = files[change->file].fd;
    size_t size = !strcmp(loses, "halves") ? change->size / 2 : change->size;
    if (!strcmp(loses, "contents") || !strcmp(loses, number % 2 ? "odd" : "even"))
        return;
    if (change->kind == WRITE)
        put(fd, change->is, size, change->at);
    else
        syscall(SYS_ftruncate, fd, change->at);
}

static void die(void)
{
    if (*loses) {
        bool all = !strcmp(loses, "all");
        for (size_t i = nr_changes; i-- > 0;)
            if (all || changes[i].kind <= CUT)
                undo(&changes[i]);
        for (size_t i = 0; i < nr_changes && !all; i++)
            if (changes[i].kind <= CUT)
                redo(&changes[i], i);
    }
    syscall(SYS_kill, getpid(), SIGKILL);
    for (;;)
        pause();
}

/* Failing */

static enum verdict next(enum kind kind)
{
    if (!strcmp(fault, "torn") && kind != WRITE)
        return PASS;
    if (!strcmp(fault, "ENOSPC") && kind != WRITE && kind != CREATE && kind != SYNC)
        return PASS;
    unsigned long call = ++disk_calls;
    if (!fault_at || call < fault_at || call >= fault_at + times)
        return PASS;
    if (!strcmp(fault, "kill"))
        die();
    if (!strcmp(fault, "after"))
        return AFTER;
    if (!strcmp(fault, "torn"))
        return TORN;
    errno = !strcmp(fault, "EIO") ? EIO : ENOSPC;
    return ERROR;
}

static long done(enum verdict verdict, long result)
{
    if (verdict == AFTER)
        die();
    return result;
}

static ssize_t write_at(int fd, const void *bytes, size_t size, off_t at, bool moves)
{
    enum verdict verdict = next(WRITE);
    int error = errno;
    size_t now = verdict == TORN || verdict == ERROR ? size / 2 : size;
    note_content(WRITE, fd, bytes, now, at);
    long written = syscall(SYS_pwrite64, fd, bytes, now, at);
    if (moves && written > 0)
        lseek(fd, at + written, SEEK_SET);
    if (verdict == TORN)
        die();
    if (verdict == ERROR) {
        errno = error;
        return -1;
    }
    return done(verdict, written);
}

ssize_t pwrite(int fd, const void *bytes, size_t size, off_t at)
{
    if (!is_fd_inside(fd))
        return syscall(SYS_pwrite64, fd, bytes, size, at);
    return write_at(fd, bytes, size, at, false);
}

ssize_t pwrite64(int, const void *, size_t, off_t) __attribute__((alias("pwrite")));

ssize_t write(int fd, const void *bytes, size_t size)
{
    if (!is_fd_inside(fd))
        return syscall(SYS_write, fd, bytes, size);
    return write_at(fd, bytes, size, lseek(fd, 0, SEEK_CUR), true);
}

int ftruncate(int fd, off_t length)
{
    if (!is_fd_inside(fd))
        return (int)syscall(SYS_ftruncate, fd, length);
    enum verdict verdict = next(CUT);
    if (verdict == ERROR)
        return -1;
    note_content(CUT, fd, NULL, 0, length);
    return (int)done(verdict, syscall(SYS_ftruncate, fd, length));
}

int ftruncate64(int, off_t) __attribute__((alias("ftruncate")));

int fsync(int fd)
{
    if (!is_fd_inside(fd))
        return (int)syscall(SYS_fsync, fd);
    enum verdict verdict = next(SYNC);
    if (verdict == ERROR)
        return -1;
    struct stat found;
    fstat(fd, &found);
    int file = *loses && !S_ISDIR(found.st_mode) ? file_of(fd) : -1;
    size_t left = 0;
    for (size_t i = 0; i < nr_changes; i++)
        if (changes[i].file != file) /* names have -1, as the folder */
            changes[left++] = changes[i];
    nr_changes = left;
    return (int)done(verdict, 0);
}

int fdatasync(int) __attribute__((alias("fsync")));

int open(const char *path, int flags, ...)
{
    va_list more;
    va_start(more, flags);
    unsigned mode = flags & O_CREAT ? va_arg(more, unsigned) : 0;
    va_end(more);
    enum verdict verdict = PASS;
    if (flags & O_CREAT && is_inside(path) && !exists(path)) {
        verdict = next(CREATE);
        if (verdict == ERROR)
            return -1;
        note(CREATE)->path = strdup(path);
    }
    return (int)done(verdict, syscall(SYS_openat, AT_FDCWD, path, flags, mode));
}

int open64(const char *, int, ...) __attribute__((alias("open")));

/* Keeps a file under a name beside the folder. */
static char *hide(const char *path)
{
    static unsigned number;
    char name[PATH_MAX];
    if (!*loses || !exists(path))
        return NULL;
    snprintf(name, sizeof name, "%s-removed-%u", folder, number++);
    syscall(SYS_link, path, name);
    return strdup(name);
}

int unlink(const char *path)
{
    if (!is_inside(path) || !exists(path))
        return (int)syscall(SYS_unlink, path);
    enum verdict verdict = next(REMOVE);
    if (verdict == ERROR)
        return -1;
    struct change *change = note(REMOVE);
    change->path = strdup(path);
    change->hidden = hide(path);
    return (int)done(verdict, syscall(SYS_unlink, path));
}

int rename(const char *path, const char *to)
{
    if (!is_inside(path) || !exists(path))
        return (int)syscall(SYS_rename, path, to);
    enum verdict verdict = next(RENAME);
    if (verdict == ERROR)
        return -1;
    struct change *change = note(RENAME);
    change->path = strdup(path);
    change->to = strdup(to);
    change->hidden = hide(to);
    return (int)done(verdict, syscall(SYS_rename, path, to));
}

int kill(pid_t pid, int number)
{
    if (pid == getpid() && number == SIGKILL && is_inside(folder ? folder : ""))
        die();
    return (int)syscall(SYS_kill, pid, number);
}
