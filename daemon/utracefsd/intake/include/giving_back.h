/*
 * Gives the memory of parts of data rings back ("Memory" in data_ring.h), in threads of its own.
 *
 * A program can hold the lock of its ring's file for as long as it likes: with a write from memory that its
 * own file system does not deliver. Nothing can end a thread that waits for this lock. So such a thread
 *
 *   - has no descriptors: if the daemon is killed meanwhile, its sockets and its lock would stay open;
 *   - closes none: copies of the daemon's descriptors may be files of other users, whose close hangs, too.
 *     All these threads are started by one that closed its copies before the daemon had any of these;
 *   - has a mapping of its own, so the ring may end before it;
 *   - runs no Python: the collector of garbage, or a signal handler, may use a descriptor.
 */
#ifndef UTRACEFSD_GIVING_BACK_H
#define UTRACEFSD_GIVING_BACK_H

#include "data_ring.h" /* defines _GNU_SOURCE */
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/syscall.h>

#define GB_CLOSE_RANGE 436 /* asm-generic/unistd.h, Linux 5.9 */
#define GB_CLOSE_RANGE_UNSHARE 2u

struct gb_job {
	unsigned char *data; /* the data area, mapped once */
	uint32_t size;
	uint32_t at[2], bytes[2]; /* two parts where the end of the area is between them */
	_Atomic int is_done, users;
	struct gb_job *next;
};

static struct {
	pthread_mutex_t lock;
	pthread_cond_t more;
	struct gb_job *first;
	pid_t of; /* the process that has the thread */
} gb_queue = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, NULL, 0};

/* Whole pages of the `bytes` at `position`, which are zero. NULL: no memory. */
static inline struct gb_job *gb_make(int fd, uint32_t size, uint64_t position, uint32_t bytes)
{
	const uint32_t page = (uint32_t)sysconf(_SC_PAGESIZE), place = (uint32_t)(position & (size - 1));
	const uint32_t first = bytes < size - place ? bytes : size - place;
	struct gb_job *job = (struct gb_job *)calloc(1, sizeof(*job));

	if (!job)
		return NULL;
	job->data = (unsigned char *)mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, DR_HEADER_BYTES);
	if (job->data == MAP_FAILED) {
		free(job);
		return NULL;
	}
	job->size = size;
	job->users = 1;
	for (int i = 0; i < 2; i++) {
		uint32_t begin = i ? 0 : place, end = i ? bytes - first : place + first;

		job->at[i] = (begin + page - 1) & ~(page - 1);
		end &= ~(page - 1);
		job->bytes[i] = end > job->at[i] ? end - job->at[i] : 0;
	}
	return job;
}

/* If the kernel cannot, the memory stays. */
static inline void gb_run(struct gb_job *job)
{
	for (int i = 0; i < 2; i++)
		if (job->bytes[i])
			madvise(job->data + job->at[i], job->bytes[i], MADV_REMOVE);
	atomic_store(&job->is_done, 1);
}

static inline void gb_drop(struct gb_job *job)
{
	if (atomic_fetch_sub(&job->users, 1) == 1) {
		munmap(job->data, job->size);
		free(job);
	}
}

static void *gb_thread(void *job)
{
	gb_run((struct gb_job *)job);
	gb_drop((struct gb_job *)job);
	return NULL;
}

static int gb_start_thread(void *(*run)(void *), void *arg)
{
	pthread_t thread;
	int error = pthread_create(&thread, NULL, run, arg);

	return error ? error : pthread_detach(thread);
}

static void *gb_serve(void *unused)
{
	(void)unused;
	syscall(GB_CLOSE_RANGE, 0u, ~0u, GB_CLOSE_RANGE_UNSHARE);
	pthread_mutex_lock(&gb_queue.lock);
	for (;;) {
		struct gb_job *job = gb_queue.first;

		if (!job) {
			pthread_cond_wait(&gb_queue.more, &gb_queue.lock);
			continue;
		}
		gb_queue.first = job->next;
		if (gb_start_thread(gb_thread, job)) {
			atomic_store(&job->is_done, 1);
			gb_drop(job);
		}
	}
	return NULL;
}

/* Starts the thread that starts the others; again after a fork. 0, or an errno. */
static inline int gb_begin(void)
{
	sigset_t all, before;
	int error;

	if (gb_queue.of == getpid())
		return 0;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	error = gb_start_thread(gb_serve, NULL);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (!error)
		gb_queue.of = getpid();
	return error;
}

/* Runs it in a thread, sooner or later. 0, or an errno. */
static inline int gb_start(struct gb_job *job)
{
	int error = gb_begin();

	if (error)
		return error;
	atomic_fetch_add(&job->users, 1);
	pthread_mutex_lock(&gb_queue.lock);
	job->next = gb_queue.first;
	gb_queue.first = job;
	pthread_cond_signal(&gb_queue.more);
	pthread_mutex_unlock(&gb_queue.lock);
	return 0;
}

#endif
