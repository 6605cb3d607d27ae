#include "ring.h"

#define UT_THREAD ut_own
#define UT_CPU_OFFSET ut_own_cpu
#include "producer.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/syscall.h>

/* The thread's own data; one copy, also under the names of bindings. */
__thread struct ut_own_thread ut_own = {.named = DR_NO_NAMES};
ptrdiff_t ut_own_cpu;
extern __thread struct ut_own_thread utb_thread __attribute__((alias("ut_own"), visibility("default")));
extern ptrdiff_t utb_cpu_offset __attribute__((alias("ut_own_cpu"), visibility("default")));

static void (*wake_taker)(uint32_t ring);
struct data_ring *ut_views;
extern struct data_ring *utb_views __attribute__((alias("ut_views"), visibility("default")));
struct ut_outlet ut_outlets[UT_MAX_RINGS];
static const size_t bytes_of_views = (UT_MAX_RINGS * sizeof(*ut_views) + sizeof(uint64_t) + 65535) & ~65535ul;
static uint32_t last_used, nr_in_use;
/* The rings given up last, while the daemon read them; 0: none. A program that closes its descriptors closes
 * those of all its sessions. */
#define MAX_STILL_READ 4
static uint32_t still_read[MAX_STILL_READ];
static unsigned nr_still_read;
#define MAX_TRIES 3 /* to make a ring while the program closes all descriptors */
static uint32_t range = 128; /* numbers below are in use or free for reuse: twice as many as there are
			      * rings */

/* Finds where the kernel stores the cpu of each thread; until then a system call does. By name: a library
 * linked to these symbols does not load with an older C library. At the start, for dlsym takes the loader's
 * lock, under which a constructor of dlopen(3) may await our lock. */
__attribute__((constructor)) static void find_cpu(void)
{
#ifdef __GLIBC_PREREQ
#if __GLIBC_PREREQ(2, 34) /* from here on dlsym needs no other library */
	const ptrdiff_t *offset = dlsym(RTLD_DEFAULT, "__rseq_offset");
	const unsigned *size = dlsym(RTLD_DEFAULT, "__rseq_size");

	if (offset && size && *size) /* otherwise the kernel has none, or the program disabled it */
		ut_own_cpu = *offset + 4;
#endif
#endif
}

static void mark(void)
{
	ut_views[0].size = 1; /* place 0 is none, so the rest of it is not read */
}

int ut_rings_init(void (*wake)(uint32_t))
{
	void *at;

	if (ut_views)
		return 0;
	wake_taker = wake;
	at = mmap(NULL, bytes_of_views, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (at == MAP_FAILED)
		return -errno;
	/* (Kernels before 4.14 do not have it: then only the fork handlers empty it.) */
	madvise(at, bytes_of_views, MADV_WIPEONFORK);
	ut_views = at;
	mark();
	return 0;
}

int ut_rings_are_marked(void)
{
	return ut_views[0].size != 0;
}

static void unmap_counters(struct ut_outlet *outlet)
{
	ut_unmap(outlet->counters.header, DR_HEADER_BYTES);
	ut_unmap(outlet->counters.lost, DR_LOST_BYTES);
	outlet->counters = (struct data_ring){NULL};
}

/* The mappings in which the program's forked children count, too (ut_ring_counters). */
static void map_counters(struct ut_outlet *outlet)
{
	/* Of 0 bytes: a second mapping of shared pages. */
	outlet->counters.header = ut_mapped(mremap(outlet->ring.header, 0, DR_HEADER_BYTES, MREMAP_MAYMOVE));
	outlet->counters.lost = ut_mapped(mremap(outlet->ring.lost, 0, DR_LOST_BYTES, MREMAP_MAYMOVE));
	if (!outlet->counters.header || !outlet->counters.lost)
		unmap_counters(outlet);
}

/* To be called with signals blocked, and without another thread. */
static void leave_to_parent(struct ut_outlet *outlet)
{
	struct data_ring *ring = &outlet->ring;

	if (outlet->is_shared && mmap(ring->header, ring->map_bytes, PROT_READ | PROT_WRITE,
				      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) != MAP_FAILED) {
		ring->header->magic = UT_PARENTS;
		ring->header->head = DR_CLOSED;
		ring->header->need_wakeup = 1; /* a commit asks for a wake */
		outlet->is_shared = 0;
	}
}

void ut_rings_start_child(void)
{
	int is_wiped = !ut_rings_are_marked();

	ut_forget_tid();
	mark();
	for (uint32_t i = 1, left = nr_in_use; left; i++) {
		if (!ut_outlets[i].in_use)
			continue;
		leave_to_parent(&ut_outlets[i]);
		if (!is_wiped)
			memset(&ut_views[i], 0, sizeof(ut_views[i]));
		left--;
	}
	for (unsigned k = 0; k < MAX_STILL_READ; k++)
		leave_to_parent(&ut_outlets[still_read[k]]);
}

void ut_rings_end(void)
{
	for (uint32_t i = 1; i < UT_MAX_RINGS; i++)
		dr_unmap(&ut_outlets[i].ring);
	munmap(ut_views, bytes_of_views);
	ut_views = NULL;
}

/* A number without a ring, the one free for the longest time; 0: none. */
static uint32_t free_number(void)
{
	if (nr_in_use > range / 2)
		range = range * 2 < UT_MAX_RINGS ? range * 2 : UT_MAX_RINGS - 1;
	for (uint32_t i = 0; i < range; i++) {
		uint32_t number = (last_used + i) % range + 1;
		struct ut_outlet *outlet = &ut_outlets[number];

		if (outlet->in_use)
			continue;
		last_used = number;
		for (unsigned k = 0; k < MAX_STILL_READ; k++)
			if (number == still_read[k])
				still_read[k] = 0;
		memset(&ut_views[number], 0, sizeof(ut_views[number]));
		dr_unmap(&outlet->ring); /* replacement of its last ring's memory */
		memset(outlet, 0, sizeof(*outlet));
		outlet->memory.fd = outlet->doorbell.fd = -1;
		return number;
	}
	return 0;
}

struct data_ring *ut_ring_counters(uint32_t number)
{
	struct ut_outlet *outlet = &ut_outlets[number];

	return outlet->in_use && outlet->counters.lost ? &outlet->counters : NULL;
}

#ifndef F_SEAL_EXEC
#define F_SEAL_EXEC 0x20
#endif

/* Gives a new memfd its length, for good. A file that the program has put over the number meanwhile must not
 * change: it takes no seals, or has some. It can still come between these two calls: so not ftruncate(2),
 * which would shorten it. (With vm.memfd_noexec a new one has F_SEAL_EXEC.) */
static int size_file(int fd, off_t bytes)
{
	const int seals = fcntl(fd, F_GET_SEALS);

	if (seals & ~F_SEAL_EXEC)
		return seals < 0 && errno != EINVAL ? -errno : -EBADF;
	if (fallocate(fd, 0, bytes - 1, 1) || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL))
		return -errno;
	return 0;
}

/* Memory and doorbell for the daemon. 0, or -errno with nothing left; -EBADF: the program has closed one of
 * them meanwhile, or has put a file over it. */
static int make_file(struct ut_outlet *outlet, uint32_t size)
{
	const off_t bytes = (off_t)dr_file_bytes(size);
	struct rlimit limit;
	int error;

	/* Beyond this limit fallocate(2) sends a signal. */
	if (getrlimit(RLIMIT_FSIZE, &limit) || limit.rlim_cur < (rlim_t)bytes)
		return -EFBIG;
	error = ut_take(&outlet->memory,
			(int)syscall(SYS_memfd_create, "utracefs-data-ring", MFD_CLOEXEC | MFD_ALLOW_SEALING), S_IFREG);
	if (error)
		return error;
	error = size_file(outlet->memory.fd, bytes);
	if (!error)
		error = ut_take(&outlet->doorbell, eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), 0);
	if (!error)
		error = dr_map(&outlet->ring, outlet->memory.fd, size);
	/* If its number is still the memfd's, that is mapped, and not a file of the program: this would be
	 * written to, and may be shorter (SIGBUS). */
	if (error || !ut_is_ours(&outlet->memory)) {
		error = ut_is_ours(&outlet->memory) ? error : -EBADF;
		dr_unmap(&outlet->ring);
		ut_close(&outlet->doorbell);
		ut_close(&outlet->memory);
	}
	outlet->doorbell.beside = &outlet->memory;
	return error;
}

int ut_ring_make(uint32_t size, uint32_t own_size)
{
	uint32_t number = free_number();
	struct ut_outlet *outlet = &ut_outlets[number];
	int error = -EBADF;

	if (!number)
		return -EMFILE;
	for (int tries = 0; size && error == -EBADF && tries < MAX_TRIES; tries++)
		error = make_file(outlet, size);
	if (error) {
		error = dr_map(&outlet->ring, -1, own_size);
		outlet->by_socket = 1;
	}
	if (error)
		return error;
	dr_init(&outlet->ring);
	map_counters(outlet);
	/* Each thread gives its name, under a number that no other ring has. */
	outlet->ring.header->names = ((uint32_t)(ut_now_ns() >> 10) & INT32_MAX) | 1;
	outlet->in_use = outlet->is_shared = 1;
	nr_in_use++;
	ut_views[number] = outlet->ring;
	return (int)number;
}

uint64_t ut_ring_position(uint32_t ring)
{
	struct dr_header *header = ut_views[ring].header;

	return header ? atomic_load(&header->head) & ~DR_CLOSED : 0;
}

int ut_ring_is_taken_in(uint32_t ring)
{
	struct dr_header *header = ut_views[ring].header;

	return !header || atomic_load(&header->tail) == ut_ring_position(ring);
}

/* Nobody reads the memory any more. */
static void replace_memory(uint32_t number)
{
	struct dr_header *header = ut_outlets[number].ring.header;
	size_t bytes = ut_outlets[number].ring.map_bytes;
	struct dr_header *nobodys;

	if (!ut_outlets[number].is_shared)
		return;
	nobodys =
		mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (nobodys == MAP_FAILED)
		return;
	nobodys->head = DR_CLOSED;
	/* (If it fails the old memory remains, which is equally correct, but uses space.) */
	if (mremap(nobodys, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, header) == MAP_FAILED)
		munmap(nobodys, bytes);
	else
		ut_outlets[number].is_shared = 0;
}

void ut_ring_give_up(uint32_t number, void (*lost)(void *arg, uint32_t write_index), void *arg)
{
	struct ut_outlet *outlet = &ut_outlets[number];
	struct dr_header *header = outlet->ring.header;
	uint32_t unread = number;

	if (ut_views[number].header) {
		/* Closed first: every later reservation fails, so the records found now are all. */
		struct dr_header positions = {.head = atomic_fetch_or(&header->head, DR_CLOSED) & ~DR_CLOSED};
		struct data_ring found = outlet->ring;
		uint64_t position = 0;
		uint32_t write_index;

		positions.tail = atomic_load(&header->tail);
		found.header = &positions;
		while (lost && dr_walk(&found, &position, &write_index))
			lost(arg, write_index);
		if (!lost && !outlet->by_socket) {
			/* The daemon still takes in what is there, and a thread may be in the middle of a record. */
			uint32_t *oldest = &still_read[nr_still_read++ % MAX_STILL_READ];

			unread = *oldest;
			*oldest = number;
		}
	}
	if (unread)
		replace_memory(unread);
	unmap_counters(outlet);
	ut_close(&outlet->doorbell);
	ut_close(&outlet->memory);
	outlet->in_use = 0;
	nr_in_use--;
}

/* 0: the thread reads the ring, or the program has closed the doorbell. */
static int wake_daemon(uint32_t number)
{
	const struct ut_outlet *outlet = &ut_outlets[number];
	const uint64_t one = 1;
	int fd = __atomic_load_n(&outlet->doorbell.fd, __ATOMIC_RELAXED);

	if (outlet->by_socket || !ut_is_ours(&outlet->doorbell))
		return 0;
	/* Not write(2), where a thread may be cancelled. It fails only if a ring of the bell is pending. */
	if (syscall(SYS_write, fd, &one, sizeof(one)) < 0) {
	}
	return 1;
}

void ut_ring_wake(uint32_t number)
{
	if (!wake_daemon(number))
		wake_taker(number);
}
