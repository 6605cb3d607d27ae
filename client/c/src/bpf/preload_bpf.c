/* The wrapped calls, and the files behind their descriptors: see preload_bpf.h. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "preload_bpf.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/perf_event.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "descriptor.h"
#include "preload_next.h"
#include "preload_tree.h"

/* ---- files */

enum kind { MAP, PROGRAM, TRACEPOINT, CLOCK, OUTPUT, LINK, BTF };

struct bpf_file {
	struct ut_file file;
	enum kind kind;
	union {
		struct bp_map *map;
		struct bp_program *program;
		struct bp_ring *ring;
		struct bp_probe *probe; /* TRACEPOINT, CLOCK, LINK */
	};
};

/* The file at `fd` if it is of this kind. With bp_lock held, until it is released. */
static struct bpf_file *file_at(int fd)
{
	struct ut_file *file = ut_file_at(fd);

	return file && ut_file_is(file, fd) ? (struct bpf_file *)file : NULL;
}

static struct bpf_file *file_of(int fd, enum kind kind)
{
	struct bpf_file *file = file_at(fd);

	return file && file->kind == kind ? file : NULL;
}

static struct bp_map *map_of(int fd)
{
	struct bpf_file *file = file_of(fd, MAP);

	return file ? file->map : NULL;
}

static void let_go(struct bpf_file *file)
{
	switch (file->kind) {
	case MAP:
		bp_map_put(file->map);
		break;
	case PROGRAM:
		bp_program_put(file->program);
		break;
	case OUTPUT:
		bp_ring_put(file->ring);
		break;
	case LINK:
		bp_probe_set_program(file->probe, NULL);
		bp_probe_put(file->probe);
		break;
	case TRACEPOINT:
	case CLOCK:
		bp_probe_put(file->probe);
		break;
	case BTF:
		break;
	}
	free(file);
}

static pid_t owner; /* of everything here */

void ut_file_released(struct ut_file *file)
{
	if (owner != getpid())
		return;
	bp_lock();
	let_go((struct bpf_file *)file);
	bp_unlock();
}

struct ut_file *ut_file_adopt(int fd)
{
	(void)fd;
	return NULL;
}

/* A descriptor for `object`, whose reference it takes. bell: an eventfd to be one more descriptor of, or -1.
 * Or -errno, with the reference gone. */
static int make_file(enum kind kind, void *object, int bell)
{
	struct bpf_file *file = calloc(1, sizeof(*file));
	struct stat status;
	int fd;

	if (!file)
		return -ENOMEM;
	file->kind = kind;
	file->map = object;
	fd = bell < 0 ? eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK) :
			NEXT(fcntl)(bell, F_DUPFD_CLOEXEC, NULL);
	if (fd < 0 || fstat(fd, &status) < 0) {
		const int error = -errno;

		let_go(file);
		return error;
	}
	owner = getpid();
	ut_file_begin();
	file->file = (struct ut_file){ .references = 1, .dev = status.st_dev, .ino = status.st_ino };
	bp_unlock(); /* a former file of this number, closed without this library, is released */
	if (!ut_file_add(fd, &file->file))
		fd = -EMFILE;
	bp_lock();
	return fd;
}

/* ---- messages */

/* The standard error of the beginning: bpftrace turns it off while it loads a program. */
static struct ut_descriptor messages = { .fd = -1 };

void bp_tell(const char *format, ...)
{
	static char told[16][200];
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	static unsigned count;
	char text[200], line[256];
	va_list arguments;
	int is_new = 1;
	unsigned i;

	va_start(arguments, format);
	vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	pthread_mutex_lock(&lock);
	for (i = 0; i < count; i++)
		is_new = is_new && strcmp(told[i], text) != 0;
	is_new = is_new && count < 16; /* no more than that of a program with an error for each record */
	if (is_new)
		strcpy(told[count++], text);
	pthread_mutex_unlock(&lock);
	if (!is_new)
		return;
	snprintf(line, sizeof(line), "utracefs: %s\n", text);
	if (NEXT(write)(ut_is_ours(&messages) ? messages.fd : STDERR_FILENO, line, strlen(line)) < 0) {
	}
}

/* ---- bpf(2); each returns a result or -errno, with bp_lock held */

/* Programs that tools load to find out what a kernel has are shorter, and such maps have no name: their
 * refusal is no news. */
#define SMALLEST_REAL 12u

static long load_program(union bpf_attr *attr)
{
	struct bp_program *program;
	struct bp_load load = {
		.instructions = (const void *)attr->insns,
		.n = attr->insn_cnt,
		.type = attr->prog_type,
		.name = attr->prog_name,
		.fd_array = (const void *)attr->fd_array,
		.map_of = map_of,
		.log = (char *)attr->log_buf,
		.log_size = attr->log_buf ? attr->log_size : 0,
	};
	const int is_real = attr->insn_cnt >= SMALLEST_REAL;
	int error;

	switch (attr->prog_type) {
	case BPF_PROG_TYPE_KPROBE:
		if (attr->expected_attach_type) /* of several functions at once: tools then try one */
			return -EINVAL;
		break;
	case BPF_PROG_TYPE_SOCKET_FILTER: /* as what libbpf loads its trials */
	case BPF_PROG_TYPE_TRACEPOINT:
	case BPF_PROG_TYPE_RAW_TRACEPOINT:
	case BPF_PROG_TYPE_PERF_EVENT:
		break;
	default:
		if (attr->insn_cnt >= 20) /* bpftrace --info tries longer ones of these */
			bp_tell("%.16s: programs of type %u do not exist here: they run on events of user_events, at "
				"intervals, and at the beginning and end", attr->prog_name, attr->prog_type);
		return -EINVAL;
	}
	if (attr->insns == 0)
		return -EFAULT;
	error = bp_program_load(&program, &load);
	if (error) {
		if (is_real && load.why[0])
			bp_tell("%.16s: %s", attr->prog_name, load.why);
		return error;
	}
	return make_file(PROGRAM, program, -1);
}

static long run_program(union bpf_attr *attr)
{
	struct bpf_file *file = file_of((int)attr->test.prog_fd, PROGRAM);
	uint64_t context[64] = { 0 };
	struct bp_record record;

	if (!file)
		return -EBADF;
	if (attr->test.ctx_size_in > sizeof(context))
		return -E2BIG;
	if (attr->test.ctx_in)
		memcpy(context, (const void *)attr->test.ctx_in, attr->test.ctx_size_in);
	bp_record_of_ourselves(&record);
	attr->test.retval = (uint32_t)bp_program_run(file->program, context, sizeof(context), &record);
	bp_ring_bells();
	return 0;
}

static long info(union bpf_attr *attr)
{
	struct bpf_file *file = file_at((int)attr->info.bpf_fd);
	union {
		struct bpf_map_info map;
		struct bpf_prog_info program;
		struct bpf_link_info link;
		struct bpf_btf_info btf;
	} all = { 0 };
	size_t size = 0;

	if (!file)
		return -EBADF;
	if (file->kind == MAP) {
		bp_map_info(file->map, &all.map);
		size = sizeof(all.map);
	} else if (file->kind == PROGRAM) {
		all.program.type = file->program->type;
		all.program.id = file->program->id;
		memcpy(all.program.name, file->program->name, sizeof(all.program.name));
		all.program.gpl_compatible = 1;
		all.program.run_cnt = file->program->runs;
		size = sizeof(all.program);
	} else if (file->kind == LINK) {
		all.link.type = BPF_LINK_TYPE_PERF_EVENT;
		all.link.id = (uint32_t)file->probe->id;
		all.link.prog_id = file->probe->program ? file->probe->program->id : 0;
		size = sizeof(all.link);
	} else if (file->kind == BTF) {
		size = sizeof(all.btf);
	} else {
		return -EINVAL;
	}
	if (size > attr->info.info_len)
		size = attr->info.info_len;
	memcpy((void *)attr->info.info, &all, size);
	attr->info.info_len = (uint32_t)size;
	return 0;
}

static long attach(struct bp_probe *probe, struct bp_program *program)
{
	if (probe->program)
		return -EEXIST;
	bp_probe_set_program(probe, program);
	return probe->starts_enabled ? bp_probe_enable(probe, 1) : 0;
}

static long create_link(union bpf_attr *attr)
{
	struct bpf_file *program = file_of((int)attr->link_create.prog_fd, PROGRAM);
	struct bpf_file *probe = file_at((int)attr->link_create.target_fd);
	long error;

	if (attr->link_create.attach_type != BPF_PERF_EVENT)
		return -EOPNOTSUPP;
	if (!program || !probe) /* libbpf's trial has no target */
		return -EBADF;
	if (probe->kind != TRACEPOINT && probe->kind != CLOCK)
		return -EINVAL;
	error = attach(probe->probe, program->program);
	if (error)
		return error;
	probe->probe->references++;
	return make_file(LINK, probe->probe, -1);
}

static long map_element(int command, union bpf_attr *attr)
{
	struct bp_map *map = map_of((int)attr->map_fd);
	const void *key = (const void *)attr->key;
	void *value = (void *)attr->value;
	struct bpf_file *output;
	long result;

	if (!map)
		return -EBADF;
	if ((!value && command != BPF_MAP_DELETE_ELEM) || (!key && command != BPF_MAP_GET_NEXT_KEY))
		return -EFAULT;
	switch (command) {
	case BPF_MAP_LOOKUP_ELEM:
		return bp_map_read(map, key, value, attr->flags);
	case BPF_MAP_LOOKUP_AND_DELETE_ELEM:
		result = bp_map_read(map, key, value, attr->flags);
		return result ? result : bp_map_erase(map, key);
	case BPF_MAP_GET_NEXT_KEY:
		return bp_map_next(map, key, value);
	case BPF_MAP_DELETE_ELEM:
		return map->type == BPF_MAP_TYPE_PERF_EVENT_ARRAY ?
			       bp_map_set_ring(map, *(const uint32_t *)key, NULL) :
			       bp_map_erase(map, key);
	default:
		if (map->type != BPF_MAP_TYPE_PERF_EVENT_ARRAY)
			return bp_map_write(map, key, value, attr->flags);
		output = file_of(*(const int *)value, OUTPUT);
		return output ? bp_map_set_ring(map, *(const uint32_t *)key, output->ring) : -EINVAL;
	}
}

static long create_map(union bpf_attr *attr)
{
	const char *why = NULL;
	struct bp_map *map;
	const int error = bp_map_new(&map, attr, &why);

	if (error) {
		if (why && attr->map_name[0])
			bp_tell("%.16s: %s", attr->map_name, why);
		return error;
	}
	return make_file(MAP, map, map->type == BPF_MAP_TYPE_RINGBUF ? map->fd : -1);
}

static long bpf_command(int command, union bpf_attr *attr)
{
	struct bp_map *map;

	switch (command) {
	case BPF_MAP_CREATE:
		return create_map(attr);
	case BPF_MAP_LOOKUP_ELEM:
	case BPF_MAP_LOOKUP_AND_DELETE_ELEM:
	case BPF_MAP_UPDATE_ELEM:
	case BPF_MAP_GET_NEXT_KEY:
	case BPF_MAP_DELETE_ELEM:
		return map_element(command, attr);
	case BPF_MAP_FREEZE:
		map = map_of((int)attr->map_fd);
		return map ? bp_map_freeze(map) : -EBADF;
	case BPF_PROG_LOAD:
		return load_program(attr);
	case BPF_PROG_TEST_RUN:
		return run_program(attr);
	case BPF_PROG_BIND_MAP: /* it only keeps the map as long as the program */
		return file_of((int)attr->prog_bind_map.prog_fd, PROGRAM) &&
				       map_of((int)attr->prog_bind_map.map_fd) ?
			       0 :
			       -EBADF;
	case BPF_OBJ_GET_INFO_BY_FD:
		return info(attr);
	case BPF_LINK_CREATE:
		return create_link(attr);
	case BPF_LINK_DETACH: {
		struct bpf_file *link = file_of((int)attr->link_detach.link_fd, LINK);

		if (!link)
			return -EBADF;
		bp_probe_set_program(link->probe, NULL);
		return 0;
	}
	case BPF_BTF_LOAD: /* of a program; nothing here needs it */
		return make_file(BTF, NULL, -1);
	case BPF_BTF_GET_NEXT_ID:
	case BPF_MAP_GET_NEXT_ID:
	case BPF_PROG_GET_NEXT_ID:
	case BPF_LINK_GET_NEXT_ID:
	case BPF_BTF_GET_FD_BY_ID:
	case BPF_MAP_GET_FD_BY_ID:
	case BPF_PROG_GET_FD_BY_ID:
	case BPF_LINK_GET_FD_BY_ID:
		return -ENOENT;
	case BPF_MAP_LOOKUP_BATCH:
	case BPF_MAP_LOOKUP_AND_DELETE_BATCH:
	case BPF_MAP_UPDATE_BATCH:
	case BPF_MAP_DELETE_BATCH:
		return -EOPNOTSUPP; /* tools then take one element at a time */
	case BPF_OBJ_PIN:
	case BPF_OBJ_GET:
		bp_tell("pinned maps and programs do not exist here: they live as long as this process");
		return -EOPNOTSUPP;
	case BPF_RAW_TRACEPOINT_OPEN:
		bp_tell("raw tracepoints do not exist here: attach to tracepoint/user_events/NAME");
		return -EOPNOTSUPP;
	default:
		return -EINVAL;
	}
}

/* ---- perf_event_open(2) and ioctl(2) */

static long open_probe(const struct perf_event_attr *attr, pid_t pid, int cpu)
{
	const int is_clock = attr->type == PERF_TYPE_SOFTWARE;
	const uint64_t period = !is_clock ? 1 : !attr->freq ? attr->sample_period :
				attr->sample_freq ? 1000000000u / attr->sample_freq : 0;
	char event[sizeof(((struct bp_probe *)NULL)->event)] = "";
	struct bp_probe *probe;

	if (period == 0)
		return -EINVAL;
	if (!is_clock && bt_event_name((uint32_t)attr->config, event, sizeof(event)) < 0) {
		bp_tell("there is no event with id %llu: the kernel's own tracepoints do not exist here, only "
			"user_events", (unsigned long long)attr->config);
		return -EINVAL;
	}
	probe = bp_probe_new(event);
	if (!probe)
		return -ENOMEM;
	probe->period_ns = period;
	probe->pid = pid;
	probe->cpu = cpu < 0 ? 0 : (uint32_t)cpu;
	probe->starts_enabled = !attr->disabled;
	return make_file(is_clock ? CLOCK : TRACEPOINT, probe, -1);
}

static long open_event(const struct perf_event_attr *attr, pid_t pid, int cpu)
{
	static const char *const kinds[] = { [PERF_TYPE_HARDWARE] = "hardware counters",
					     [PERF_TYPE_HW_CACHE] = "hardware counters of caches",
					     [PERF_TYPE_RAW] = "raw hardware counters",
					     [PERF_TYPE_BREAKPOINT] = "watchpoints" };
	struct bp_ring *ring;
	int error;

	if (!attr)
		return -EFAULT;
	if (attr->type == PERF_TYPE_TRACEPOINT)
		return open_probe(attr, pid, cpu);
	if (attr->type == PERF_TYPE_SOFTWARE) {
		switch (attr->config) {
		case PERF_COUNT_SW_CPU_CLOCK:
		case PERF_COUNT_SW_TASK_CLOCK:
			return open_probe(attr, pid, cpu);
		case PERF_COUNT_SW_BPF_OUTPUT:
			error = bp_ring_new(&ring);
			return error ? error : make_file(OUTPUT, ring, ring->bell);
		}
		bp_tell("the kernel's software events (perf's number %llu) do not exist here, but cpu-clock",
			(unsigned long long)attr->config);
		return -ENOENT;
	}
	if (attr->type < PERF_TYPE_MAX)
		bp_tell("%s do not exist here: programs run on events of user_events", kinds[attr->type]);
	else
		bp_tell(BP_NO_PROBES);
	return -ENOENT;
}

static long control(struct bpf_file *file, unsigned long request, void *argument)
{
	struct bpf_file *program;

	switch (request) {
	case PERF_EVENT_IOC_ENABLE:
	case PERF_EVENT_IOC_DISABLE:
		if (file->kind != OUTPUT)
			return bp_probe_enable(file->probe, request == PERF_EVENT_IOC_ENABLE);
		file->ring->is_enabled = request == PERF_EVENT_IOC_ENABLE;
		return 0;
	case PERF_EVENT_IOC_RESET:
		return 0;
	case PERF_EVENT_IOC_SET_BPF:
		program = file_of((int)(intptr_t)argument, PROGRAM);
		return file->kind == OUTPUT || !program ? -EINVAL : attach(file->probe, program->program);
	case PERF_EVENT_IOC_PERIOD:
		if (file->kind != CLOCK || !argument || !*(const uint64_t *)argument)
			return -EINVAL;
		file->probe->period_ns = *(const uint64_t *)argument;
		return 0;
	case PERF_EVENT_IOC_ID:
		if (!argument)
			return -EFAULT;
		*(uint64_t *)argument = file->kind == OUTPUT ? 0 : file->probe->id;
		return 0;
	case PERF_EVENT_IOC_SET_FILTER:
		bp_tell("filters of perf events do not exist here: compare in the program");
		return -EINVAL;
	default:
		return -ENOTTY;
	}
}

/* ---- the wrapped calls */

/* `result` as a system call returns it. */
static long end(struct ut_section *section, long result)
{
	bp_unlock();
	if (result < 0)
		section->error = (int)-result;
	ut_section_end(section);
	return result < 0 ? -1 : result;
}

/* -1: a child of fork, which has neither our thread nor, perhaps, a lock that is open. */
static int begin(struct ut_section *section)
{
	if (owner && owner != getpid()) {
		bp_tell("programs run in the process that has loaded them, and end with it");
		errno = EPERM;
		return -1;
	}
	ut_section_begin(section);
	bp_lock();
	return 0;
}

static long wrapped_bpf(int command, void *user, unsigned size)
{
	struct ut_section section;
	union bpf_attr attr;
	long result;

	if (!user) {
		errno = EFAULT;
		return -1;
	}
	memset(&attr, 0, sizeof(attr));
	if (size > sizeof(attr)) /* of a newer tool */
		size = sizeof(attr);
	memcpy(&attr, user, size);
	if (begin(&section))
		return -1;
	result = bpf_command(command, &attr);
	if (result >= 0)
		memcpy(user, &attr, size);
	return end(&section, result);
}

WRAP(long, syscall, (long number, long a, long b, long c, long d, long e, long f))
{
	struct ut_section section;
	long result;
	int mine;

	if (number == SYS_bpf)
		return wrapped_bpf((int)a, (void *)b, (unsigned)c);
	if (number == SYS_perf_event_open)
		return begin(&section) ? -1 : end(&section, open_event((const void *)a, (pid_t)b, (int)c));
	result = ut_descriptor_call(&mine, number, a, b, c);
	if (mine)
		return result;
	return NEXT(syscall)(number, a, b, c, d, e, f);
}

WRAP(int, ioctl, (int fd, unsigned long request, void *argument))
{
	struct ut_section section;
	struct bpf_file *file;

	if (__builtin_expect(!ut_file_at(fd), 1))
		return NEXT(ioctl)(fd, request, argument);
	if (begin(&section))
		return -1;
	file = file_at(fd);
	if (file && (file->kind == TRACEPOINT || file->kind == CLOCK || file->kind == OUTPUT))
		return (int)end(&section, control(file, request, argument));
	(void)end(&section, 0);
	return NEXT(ioctl)(fd, request, argument);
}

WRAP(void *, mmap, (void *address, size_t size, int prot, int flags, int fd, off_t offset))
{
	struct ut_section section;
	struct bpf_file *file;
	void *result = MAP_FAILED;
	int error = 0, memory = fd;

	if (__builtin_expect(fd < 0 || !ut_file_at(fd), 1))
		return (void *)ut_system_call(SYS_mmap, (long)address, (long)size, prot, flags, fd, offset);
	if (begin(&section))
		return MAP_FAILED;
	file = file_at(fd);
	if (file && file->kind == MAP && file->map->type == BPF_MAP_TYPE_RINGBUF) {
		result = bp_ringbuf_map(file->map, address, size, prot, flags, offset, &error);
	} else {
		if (file && file->kind == OUTPUT) {
			error = bp_ring_map(file->ring, size);
			memory = file->ring->memory;
		} else if (file && file->kind == MAP) {
			memory = file->map->fd;
			if (memory < 0)
				error = -EINVAL;
		}
		if (!error) {
			result = (void *)ut_system_call(SYS_mmap, (long)address, (long)size, prot, flags, memory,
							offset);
			error = result == MAP_FAILED ? -errno : 0;
		}
	}
	(void)end(&section, result == MAP_FAILED ? -abs(error) : 0);
	return result;
}
ALIAS(void *, mmap64, mmap, (void *address, size_t size, int prot, int flags, int fd, off_t offset))

/* Nobody reads the eventfds, so they would stay ready: report each write instead. Tools read all that there
 * is after each wait. */
WRAP(int, epoll_ctl, (int epoll, int operation, int fd, struct epoll_event *event))
{
	struct epoll_event edge;

	if (__builtin_expect(ut_file_at(fd) != NULL, 0) && event && operation != EPOLL_CTL_DEL) {
		edge = *event;
		edge.events |= EPOLLET;
		event = &edge;
	}
	return (int)ut_system_call(SYS_epoll_ctl, epoll, operation, fd, (long)event, 0, 0);
}

/* At the end of a recording the tool gets a SIGINT as from Ctrl-C, and here: bpftrace takes notice of signals
 * only if they interrupt its wait. */
WRAP(int, epoll_wait, (int epoll, struct epoll_event *events, int most, int timeout_ms))
{
	unsigned output;
	int ready;

	if (bt_is_recording()) {
		output = bp_output();
		ready = (int)ut_system_call(SYS_epoll_pwait, epoll, (long)events, most, 0, 0, 0);
		if (ready)
			return ready;
		if (bp_idle(output)) {
			raise(SIGINT);
			errno = EINTR;
			return -1;
		}
	}
	return (int)ut_system_call(SYS_epoll_pwait, epoll, (long)events, most, timeout_ms, 0, 0);
}

WRAP(int, poll, (struct pollfd *polled, nfds_t count, int timeout_ms))
{
	struct timespec timeout = { timeout_ms / 1000, timeout_ms % 1000 * 1000000L };
	const int ready = (int)ut_system_call(SYS_ppoll, (long)polled, (long)count,
					      timeout_ms < 0 ? 0 : (long)&timeout, 0, 0, 0);
	const int saved = errno;
	uint64_t rung;
	nfds_t i;

	for (i = 0; ready > 0 && i < count; i++)
		if (polled[i].revents & POLLIN && ut_file_at(polled[i].fd) &&
		    NEXT(read)(polled[i].fd, &rung, sizeof(rung)) < 0) {
		}
	errno = saved;
	return ready;
}

/* bpf(2) of a kernel is root's. Only for programs that have libbpf: a shell with two different users behaves
 * otherwise. */
WRAP(uid_t, geteuid, (void))
{
	return dlsym(RTLD_DEFAULT, "bpf_object__open_mem") ?
		       0 :
		       (uid_t)ut_system_call(SYS_geteuid, 0, 0, 0, 0, 0, 0);
}

/* Locked memory for maps, in kernels before 5.11. */
WRAP(int, setrlimit, (int resource, const struct rlimit *limit))
{
	return resource == RLIMIT_MEMLOCK ?
		       0 :
		       (int)ut_system_call(SYS_prlimit64, 0, resource, (long)limit, 0, 0, 0);
}
ALIAS(int, setrlimit64, setrlimit, (int resource, const struct rlimit *limit))

/* The command that a tool starts (bpftrace -c) is not one itself. */
__attribute__((constructor)) static void start(void)
{
	const char *theirs = getenv("UTRACEFS_BPF_CHILD_PRELOAD");
	const int copy = NEXT(fcntl)(STDERR_FILENO, F_DUPFD_CLOEXEC, (void *)(intptr_t)UT_FIRST_FD);

	if (copy >= 0)
		(void)ut_take(&messages, copy);
	if (!theirs)
		return;
	if (*theirs)
		setenv("LD_PRELOAD", theirs, 1);
	else
		unsetenv("LD_PRELOAD");
	unsetenv("UTRACEFS_BPF_CHILD_PRELOAD");
}
