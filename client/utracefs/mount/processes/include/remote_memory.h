/*
 * Another process's memory: reading, writing, and one bit of it.
 *
 *     /proc/PID/mem    the bytes                both belong to the address space for which they were opened,
 *     /proc/PID/maps   their access rights      not to the pid: after its end and after an exec they read
 *                                               nothing (mem_open() and proc_maps_open())
 *
 * So the checked address space is the one written to, whatever happens to the process meanwhile. Writing to
 * `mem` does not check whether the program itself may write there (FOLL_FORCE in mem_rw()), reading not
 * whether it may read. Therefore each access checks `maps` first and returns what copy_from_user() and
 * copy_to_user() would. Between the check and the access the program may change its own mapping; that affects
 * only its own memory, at an address that it named.
 *
 * `mem` refuses a fault on a page of a userfaultfd. A fault on a page of a file waits for that file's server,
 * which may be the program itself: callers do all of this on a separate thread (_memory.pyx).
 *
 * Errors are negative errno: -EFAULT the program may not read or write it, -ESRCH the address space has
 * ended.
 */
#ifndef UTRACEFS_REMOTE_MEMORY_H
#define UTRACEFS_REMOTE_MEMORY_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

/* The flags of struct procmap_query. */
enum { RM_READ = 1, RM_WRITE = 2, RM_EXECUTE = 4, RM_SHARED = 8 };

struct rm_files {
	int mem, maps;
};

struct rm_vma {
	uint64_t start, end; /* end: the first address after it */
	uint64_t inode;	     /* 0: no file */
	unsigned flags;
};

/* struct procmap_query of <linux/fs.h>, Linux 6.11 and later. */
struct rm_query {
	uint64_t size, query_flags, address;
	uint64_t start, end, flags, page_size, offset, inode;
	uint32_t major, minor, name_size, build_id_size;
	uint64_t name, build_id;
};
#define RM_PROCMAP_QUERY _IOWR('f', 17, struct rm_query)

/* Parse a line of maps: `START-END rwxp OFFSET MAJOR:MINOR INODE ...`. 0 for any other. */
static inline int rm_parse_line(const char *line, struct rm_vma *vma)
{
	char may[5];

	if (sscanf(line, "%" SCNx64 "-%" SCNx64 " %4s %*x %*x:%*x %" SCNu64, &vma->start, &vma->end, may,
		   &vma->inode) != 4)
		return 0;
	vma->flags = (may[0] == 'r' ? RM_READ : 0) | (may[1] == 'w' ? RM_WRITE : 0) |
		     (may[2] == 'x' ? RM_EXECUTE : 0) | (may[3] == 's' ? RM_SHARED : 0);
	return 1;
}

/* Like rm_find, for kernels before 6.11: lines are in the order of addresses. */
static inline int rm_find_in_text(int maps, uint64_t address, struct rm_vma *vma)
{
	char text[16384];
	size_t have = 0;
	int seen = 0;
	ssize_t got;
	off_t at = 0;

	while ((got = pread(maps, text + have, sizeof(text) - 1 - have, at)) > 0) {
		char *line = text, *newline;

		seen = 1;
		at += got;
		have += got;
		text[have] = 0;
		while ((newline = memchr(line, '\n', text + have - line))) {
			*newline = 0;
			if (rm_parse_line(line, vma) && address < vma->end)
				return address >= vma->start ? 0 : -EFAULT;
			line = newline + 1;
		}
		have = text + have - line;
		memmove(text, line, have);
	}
	return seen ? -EFAULT : -ESRCH;
}

/* The mapping of `address`. */
static inline int rm_find(int maps, uint64_t address, struct rm_vma *vma)
{
	struct rm_query query = {.size = sizeof(query), .address = address};

	if (ioctl(maps, RM_PROCMAP_QUERY, &query) == 0) {
		*vma = (struct rm_vma){query.start, query.end, query.inode, query.flags};
		return 0;
	}
	if (errno == ENOTTY)
		return rm_find_in_text(maps, address, vma);
	return errno == ESRCH ? -ESRCH : -EFAULT;
}

/* Whether the program may do `need` with all of these bytes. */
static inline int rm_check(int maps, uint64_t address, uint64_t size, unsigned need)
{
	struct rm_vma vma;
	uint64_t end = address + size;
	int error;

	if (end < address)
		return -EFAULT;
	while (address < end) {
		error = rm_find(maps, address, &vma);
		if (error)
			return error;
		if ((vma.flags & need) != need)
			return -EFAULT;
		address = vma.end;
	}
	return 0;
}

/* Opens both files of thread `tid` and reads the 16 bytes that exec put on the stack (AT_RANDOM). They are
 * read through `mem`, so they belong to the opened address space, whichever one auxv was of. */
static inline int rm_open(pid_t tid, struct rm_files *files, uint64_t *stack_address, char *random)
{
	union {
		uint64_t of_64[128];
		uint32_t of_32[256];
	} pairs;
	char path[48];
	ssize_t got;
	int fd, i;

	snprintf(path, sizeof(path), "/proc/%d/mem", tid);
	files->mem = open(path, O_RDWR | O_CLOEXEC);
	if (files->mem < 0)
		return -errno;
	snprintf(path, sizeof(path), "/proc/%d/maps", tid);
	files->maps = open(path, O_RDONLY | O_CLOEXEC);
	snprintf(path, sizeof(path), "/proc/%d/auxv", tid);
	fd = files->maps < 0 ? -1 : open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	got = read(fd, &pairs, sizeof(pairs));
	close(fd);
	for (i = 0; i + 1 < (int)(got / 8) && !*stack_address; i += 2)
		if (pairs.of_64[i] == 25) /* AT_RANDOM */
			*stack_address = pairs.of_64[i + 1];
	/* A 32-bit program. */
	for (i = 0; i + 1 < (int)(got / 4) && !*stack_address; i += 2)
		if (pairs.of_32[i] == 25)
			*stack_address = pairs.of_32[i + 1];
	got = pread(files->mem, random, 16, (off_t)*stack_address);
	return got == 16 ? 0 : -ESRCH;
}

/* Reads into `data`, or with RM_WRITE writes it. 0, or an error; then a part may be done. */
static inline int rm_move(struct rm_files files, uint64_t address, void *data, size_t size, int way)
{
	int error = rm_check(files.maps, address, size, way);
	size_t done = 0;

	while (!error && done < size) {
		char *from = (char *)data + done;
		off_t at = (off_t)(address + done);
		ssize_t moved = way == RM_WRITE ? pwrite(files.mem, from, size - done, at)
						: pread(files.mem, from, size - done, at);
		if (moved > 0)
			done += moved;
		else if (moved == 0)
			error = -ESRCH;
		else if (errno != EINTR)
			error = -EFAULT;
	}
	return error;
}

/* The length of the text without its NUL; it is in `into`, which has `limit` + 1 bytes. -EINVAL: no NUL
 * within the limit. Reads page by page, as a text may end right before unmapped memory. */
static inline ssize_t rm_read_string(struct rm_files files, uint64_t address, char *into, size_t limit)
{
	const uint64_t page = sysconf(_SC_PAGESIZE);
	size_t have = 0;

	while (have <= limit) {
		size_t piece = page - (address + have) % page;
		char *nul;
		int error;

		if (piece > limit + 1 - have)
			piece = limit + 1 - have;
		error = rm_move(files, address + have, into + have, piece, RM_READ);
		if (error)
			return error;
		nul = memchr(into + have, 0, piece);
		if (nul)
			return nul - into;
		have += piece;
	}
	return -EINVAL;
}

/* Whether this is memory, as for get_user_pages(), and not a device (VM_IO, VM_PFNMAP), whose registers `mem`
 * might write. process_vm_readv() refuses devices. */
static inline int rm_is_memory(pid_t tid, uint64_t address, const struct rm_vma *vma)
{
	char byte;
	struct iovec here = {&byte, 1}, there = {(void *)(uintptr_t)address, 1};

	if (vma->inode == 0)
		return 1;
	if (process_vm_readv(tid, &here, 1, &there, 1, 0) == 1)
		return 1;
	/* A container may forbid the call; programs have no private mappings of devices. */
	return (errno == ENOSYS || errno == EPERM) && !(vma->flags & RM_SHARED);
}

/* The same, by a living thread: the first one of a process may end before the others, and then has no
 * memory. */
static inline int rm_is_memory_of_any(pid_t pid, uint64_t address, const struct rm_vma *vma)
{
	int found = rm_is_memory(pid, address, vma);
	struct dirent *entry;
	char path[32];
	DIR *tasks;

	snprintf(path, sizeof(path), "/proc/%d/task", pid);
	tasks = found ? NULL : opendir(path);
	while (tasks && !found && (entry = readdir(tasks)))
		found = rm_is_memory(atoi(entry->d_name), address, vma);
	if (tasks)
		closedir(tasks);
	return found;
}

/* Set or clear bit `bit` of the word of `size` bytes at `address`. Another process's memory can only be read
 * and written: if the program changes another bit of the byte in the 300 ns between, its change is undone.
 * Stopping its threads (ptrace) would prevent that, and can change what their system calls return.
 * -EFAULT: the program may not write there, or it is no memory. */
static inline int rm_set_bit(struct rm_files files, pid_t pid, uint64_t address, unsigned size, unsigned bit,
			     int on)
{
	const uint64_t byte = address + (__BYTE_ORDER__ == __ORDER_BIG_ENDIAN__ ? size - 1 - bit / 8 : bit / 8);
	const unsigned char mask = 1u << bit % 8;
	unsigned char value;
	struct rm_vma vma;
	ssize_t moved;
	int error;

	error = rm_find(files.maps, byte, &vma);
	if (error)
		return error;
	if (!(vma.flags & RM_WRITE) || !rm_is_memory_of_any(pid, byte, &vma))
		return -EFAULT;
	moved = pread(files.mem, &value, 1, (off_t)byte);
	if (moved == 1 && !(value & mask) == (on != 0)) {
		value ^= mask;
		moved = pwrite(files.mem, &value, 1, (off_t)byte);
	}
	return moved == 1 ? 0 : moved == 0 ? -ESRCH : -EFAULT;
}

#endif
