/*
 * Code that runs once per record: check, reserve, fill, commit. No lock, no system call except to wake the
 * reader, only operations that a signal handler may do. All of it is in one file, so that there is one copy
 * of the thread id that producer.h keeps.
 */
#define UT_THREAD ut_own
#define UT_CPU_OFFSET ut_own_cpu
#define DR_WAITS dr_may_wait
#include "emit.h"

#include <limits.h>
#include <sys/syscall.h>

#include "events.h"
#include "session.h"

_Static_assert(sizeof(struct utb_reserved) <= sizeof(((struct utracefs_reserved *)0)->internal),
	       "utracefs_reserved");

static int wait_for_room(uint32_t ring, uint32_t size, uint64_t *until)
{
	const struct timespec pause = {.tv_nsec = 50000};
	uint64_t stuck_at = 1;
	int error = errno, has_room = 0;

	ut_own.waits = 1;
	for (unsigned polls = 0;; polls++) {
		struct data_ring view = ut_view(ut_views, ut_place(ring, 0)); /* again: a handler may fork */
		uint64_t now = ut_now_ns(), tail;
		struct dr_record *oldest;
		uint32_t word;

		if (!view.header || !dr_may_wait(&view, size) || dr_has_room(&view, size)) {
			has_room = 1;
			break;
		}
		if (!*until)
			*until = now + view.header->wait_us * UINT64_C(1000);
		tail = atomic_load(&view.header->tail);
		if (tail != stuck_at)
			polls = 0;
		stuck_at = tail;
		oldest = (struct dr_record *)(view.data + (tail & (view.size - 1)));
		word = atomic_load(&oldest->length_word);
		/* The daemon waits for this record of our own (without a thread id yet, that is likely). */
		if (now >= *until || (word && !(word & DR_COMMITTED) &&
				      (oldest->tid == ut_tid() || (!oldest->tid && polls > 20)))) {
			atomic_store(&view.header->waited_at, tail + 1);
			break;
		}
		/* Not nanosleep(3), where a thread may be cancelled. */
		if (syscall(SYS_nanosleep, &pause, NULL) < 0 && ut_is_interrupted())
			break;
	}
	ut_own.waits = 0;
	errno = error;
	return has_room;
}

int ut_find_place(struct ut_reg *reg, uint32_t size, uint64_t *until)
{
	return ut_reg_has_ring(reg) ? wait_for_room((uint32_t)(atomic_load(&reg->place) >> 32), size, until) :
				      ut_reg_find_place(reg);
}

/* After a failed attempt to reserve at `place`: sets needs_place if another one may succeed, there or
 * elsewhere (a child's first record, or a ring that the daemon has closed); else the record is counted as
 * lost. */
static void miss(struct utb_reserved *r, uint32_t flag, uint64_t place)
{
	struct data_ring view = ut_view(ut_views, place);

	r->needs_place = 0;
	if (r->half) { /* full, and that was not counted */
		r->needs_place = !ut_own.waits;
		if (!r->needs_place && view.header)
			dr_count_lost(&view, (uint32_t)place | flag);
	} else if (!view.header || dr_is_closed(&view)) {
		r->needs_place = !ut_reg_lose(r->reg);
		return;
	}
	if (!r->needs_place)
		atomic_fetch_add_explicit(&r->reg->lost, 1, memory_order_relaxed);
}

static __attribute__((noinline, cold)) int reserve_later(struct ut_reg *reg, uint32_t flag, uint32_t size,
							 uint64_t place, struct utb_reserved *r)
{
	int may_succeed = 1;
	uint64_t until = 0;

	do {
		miss(r, flag, place);
		if (!r->needs_place || !may_succeed)
			return 0; /* counted; or off, there is no daemon */
		may_succeed = ut_find_place(reg, size, &until) || r->half;
		place = atomic_load_explicit(&reg->place, memory_order_acquire);
	} while (!ut_reserve_at(ut_views, place, flag, size, r));
	return 1;
}

/* Space for a record, or with DR_REFUSED a refusal. False: none, and counted. */
static inline int reserve_as(struct ut_reg *reg, uint32_t flag, uint32_t size, struct utb_reserved *r)
{
	uint64_t place = atomic_load_explicit(&reg->place, memory_order_acquire);

	r->reg = reg;
	return __builtin_expect(ut_reserve_at(ut_views, place, flag, size, r), 1) ||
	       reserve_later(reg, flag, size, place, r);
}

void utb_wake(const struct utb_reserved *r)
{
	int error = errno;

	if (r->header->magic == UT_PARENTS) {
		ut_lock();
		ut_reg_count_cut_off(r->reg);
		atomic_store(&r->header->need_wakeup, 1); /* for an emit that this one has interrupted */
		ut_unlock();
	} else {
		ut_ring_wake(r->ring);
	}
	errno = error;
}

/* Puts a mark in place of the record: the daemon counts it as refused (data_ring.h). Without room for the
 * mark it counts as lost. */
static void refuse(struct ut_reg *reg, const char *field, const char *what)
{
	size_t begin = strnlen(field, DR_MAX_WHY / 2), end = strnlen(what, DR_MAX_WHY / 2);
	struct utb_reserved r;

	if (reserve_as(reg, DR_REFUSED, (uint32_t)(begin + 1 + end), &r)) {
		memcpy(r.record->payload, field, begin);
		r.record->payload[begin] = ' ';
		memcpy(r.record->payload + begin + 1, what, end);
		utb_commit(&r);
		atomic_fetch_add_explicit(&reg->refused, 1, memory_order_relaxed);
	}
}

static inline int reserve(struct ut_reg *reg, size_t size, struct utb_reserved *r)
{
	if (__builtin_expect(size <= DR_MAX_PAYLOAD, 1))
		return reserve_as(reg, 0, (uint32_t)size, r);
	refuse(reg, "payload", "was too long");
	return 0;
}

/* After a failed attempt to reserve at `place`. NULL: counted as lost or refused; or needs_place. */
UT_EXPORTED unsigned char *utb_reserve_slowly(struct utb_reserved *r, uint32_t size, uint64_t place)
{
	if (size > DR_MAX_PAYLOAD)
		refuse(r->reg, "payload", "was too long");
	else
		miss(r, 0, place);
	return NULL;
}

int utracefs_reserve(struct utracefs_event *event, size_t size, struct utracefs_reserved *reserved)
{
	struct utb_reserved *r = (struct utb_reserved *)(void *)reserved->internal;
	struct ut_reg *reg = ut_reg_of_event(event);

	reserved->payload = reg && reserve(reg, size, r) ? r->record->payload : NULL;
	return reserved->payload != NULL;
}

void utracefs_commit(struct utracefs_reserved *reserved)
{
	utb_commit((const struct utb_reserved *)(const void *)reserved->internal);
}

void utracefs_refuse(struct utracefs_event *event, const char *field, const char *what)
{
	struct ut_reg *reg = ut_reg_of_event(event);

	if (reg)
		refuse(reg, field, what);
}

/* ---- records in pieces */

/* Copies `size` bytes at `offset` of the payload, which is long enough. */
static void gather(const struct ut_record *p, size_t offset, void *to, size_t size)
{
	unsigned char *at = to;

	offset += p->skip;
	for (int i = 0; size; i++) {
		size_t length = p->iov[i].iov_len, count;

		if (offset >= length) {
			offset -= length;
			continue;
		}
		count = length - offset < size ? length - offset : size;
		memcpy(at, (const unsigned char *)p->iov[i].iov_base + offset, count);
		at += count;
		size -= count;
		offset = 0;
	}
}

/* A byte of the common fields in the record: u16 id, u8 flags, u8 preempt count, i32 pid. */
static unsigned char common_byte(const struct ut_reg *reg, unsigned offset)
{
	if (offset < 2)
		return (unsigned char)(reg->id >> (8 * offset));
	return offset < 4 ? 0 : (unsigned char)(ut_tid() >> (8 * (offset - 4)));
}

/* user_event_validate() of the kernel. Positions count from the start of the entry, whose 8 common bytes
 * are not payload. For a `__data_loc` of offset and size 0 the kernel reads in front of the entry; here
 * that byte is 0. */
static int is_valid(const struct ut_reg *reg, const struct ut_record *p)
{
	for (uint32_t i = 0; i < reg->nr_locs; i++) {
		const struct ut_loc *loc = &reg->locs[i];
		unsigned char word[4], last = 0;
		uint32_t value;
		uint64_t end;

		gather(p, loc->offset, word, 4);
		value = ut_get_le32(word);
		end = (uint64_t)(value & 0xffff) + (value >> 16);
		if (loc->flags & UT_LOC_REL)
			end += 8 + (uint64_t)loc->offset + 4;
		if (end > (uint64_t)p->size + 8)
			return 0;
		if (!(loc->flags & UT_LOC_CHAR) || end == 0)
			continue;
		if (end <= 8)
			last = common_byte(reg, (unsigned)end - 1);
		else
			gather(p, end - 9, &last, 1);
		if (last)
			return 0;
	}
	return 1;
}

static ssize_t total(const struct iovec *iov, int n)
{
	size_t size = 0;

	for (int i = 0; i < n; i++) {
		size += iov[i].iov_len;
		if (size > SSIZE_MAX || iov[i].iov_len > SSIZE_MAX)
			return -EINVAL;
	}
	return (ssize_t)size;
}

/* The checks before the payload is read. 0 or negative errno. */
static inline int judge(struct ut_reg *reg, size_t size)
{
	const uint8_t *status = atomic_load_explicit(&reg->status, memory_order_acquire);

	if (size < reg->size)
		return -EINVAL;
	if (__builtin_expect(status == &ut_pending, 0))
		return ut_reg_may_emit(reg) ? 0 : -EBADF;
	return *(const volatile uint8_t *)status ? 0 : -EBADF;
}

/* 0 or negative errno. */
static int write_record(struct ut_reg *reg, const struct ut_record *p)
{
	struct utb_reserved r = {.record = NULL};
	int error = judge(reg, p->size);

	if (error)
		return error;
	/* (One that is too long for a tracer is dropped before its content is looked at.) */
	if (reg->nr_locs && p->size <= DR_MAX_PAYLOAD && !is_valid(reg, p))
		return -EFAULT;
	/* No space: taken and counted, as in the kernel. Or there is no daemon any more. */
	if (!reserve(reg, p->size, &r))
		return ut_reg_has_ring(reg) ? 0 : -EBADF;
	if (p->n == 1)
		memcpy(r.record->payload, (const unsigned char *)p->iov[0].iov_base + p->skip, p->size);
	else
		gather(p, 0, r.record->payload, p->size);
	utb_commit(&r);
	return 0;
}

int utracefs_emit_iov(struct utracefs_event *event, const struct iovec *iov, int n)
{
	struct ut_reg *reg = ut_reg_of_event(event);
	ssize_t size = total(iov, n);
	struct ut_record p = {.iov = iov, .n = n, .size = (size_t)size};

	if (!reg)
		return -EBADF;
	return size < 0 ? (int)size : write_record(reg, &p);
}

int ut_session_judge(struct ut_session *s, int32_t write_index, size_t payload)
{
	struct ut_reg *reg = write_index < 0 ? NULL : ut_reg_of(s, (uint32_t)write_index);

	if (!reg)
		return write_index < 0 ? -EINVAL : -ENOENT;
	return judge(reg, payload);
}

/* All in one function: this is the cost of a write of a program with the preload library. */
__attribute__((flatten)) ssize_t ut_session_write(struct ut_session *s, const struct iovec *iov, int n,
						  size_t size)
{
	struct ut_record p = {.iov = iov, .n = n, .size = size - 4};
	unsigned char word[4];
	struct ut_reg *reg;
	uint32_t index;
	int error;

	if (size < 4)
		return -EFAULT;
	if (__builtin_expect(iov->iov_len >= sizeof(word), 1))
		memcpy(word, iov->iov_base, sizeof(word));
	else
		gather(&p, 0, word, sizeof(word));
	index = ut_get_le32(word);
	if (index > INT32_MAX)
		return -EINVAL;
	reg = ut_reg_of(s, index);
	if (!reg)
		return -ENOENT;
	/* The index may be a piece by itself. */
	p.skip = 4;
	while (p.n > 1 && p.skip >= p.iov->iov_len) {
		p.skip -= p.iov->iov_len;
		p.iov++;
		p.n--;
	}
	error = write_record(reg, &p);
	if (__builtin_expect(error == -EFAULT, 0))
		error = ut_reg_ask(reg, &p);
	return error ? error : (ssize_t)size;
}
