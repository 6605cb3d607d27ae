/* The wrapped calls, and the files behind their descriptors: see preload_bpf.h. */
#include "preload_bpf.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/perf_event.h>
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

/* ---- files */

enum kind { NO_FILE, MAP, PROGRAM, PROBE, OUTPUT, ANY_FILE };

struct bpf_file {
	struct ut_file file;
	enum kind kind;
	union {
		struct bp_map *map;
		struct bp_program *program;
		struct bp_ring *ring;
		struct bp_probe *probe;
	};
};

/* The file at `fd` if it is of this kind. With bp_lock held, until it is released. */
static struct bpf_file *file_of(int fd, enum kind kind)
{
	struct bpf_file *file = (struct bpf_file *)ut_file_at(fd);

	return file && ut_file_is(&file->file, fd) && (kind == ANY_FILE || file->kind == kind) ? file : NULL;
}

static struct bp_map *map_of(int fd)
{
	struct bpf_file *file = file_of(fd, MAP);

	return file ? file->map : NULL;
}

static void let_go(struct bpf_file *file)
{
	if (file->kind == MAP)
		bp_map_put(file->map);
	else if (file->kind == PROGRAM)
		bp_program_put(file->program);
	else if (file->kind == OUTPUT)
		bp_ring_put(file->ring);
	else
		bp_probe_free(file->probe);
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
	fd = bell < 0 ? eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK) : NEXT(fcntl)(bell, F_DUPFD_CLOEXEC, NULL);
	if (fd < 0 || fstat(fd, &status) < 0) {
		const int error = -errno;

		let_go(file);
		return error;
	}
	owner = getpid();
	ut_file_begin();
	file->file = (struct ut_file){.references = 1, .dev = status.st_dev, .ino = status.st_ino};
	bp_unlock(); /* a former file of this number, closed without this library, is released */
	if (!ut_file_add(fd, &file->file))
		fd = -EMFILE;
	bp_lock();
	return fd;
}

/* ---- messages */

/* The standard error of the beginning: bpftrace turns it off while it loads a program. */
static struct ut_descriptor messages = {.fd = -1};

void bp_tell(const char *format, ...)
{
	static char told[16][200]; /* no more than that of a program with an error for each record */
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	const int fd = ut_is_ours(&messages) ? messages.fd : STDERR_FILENO;
	char text[200];
	va_list arguments;
	unsigned i = 0;

	va_start(arguments, format);
	vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	pthread_mutex_lock(&lock);
	while (i < 16 && told[i][0] && strcmp(told[i], text))
		i++;
	if (i < 16 && !told[i][0]) {
		strcpy(told[i], text);
		dprintf(fd, "utracefs: %s\n", text);
	}
	pthread_mutex_unlock(&lock);
}

/* ---- bpf(2); each returns a result or -errno, with bp_lock held */

#define COMMAND(name)                                                      \
	static long name(__attribute__((unused)) struct bpf_file *file, \
			 __attribute__((unused)) union bpf_attr *attr)
#define RESULT(name, value) \
	COMMAND(name)       \
	{                   \
		return (value); \
	}
#define KEY(attr) ((const void *)(attr)->key)
#define VALUE(attr) ((void *)(attr)->value)
/* Programs that tools load to find out what a kernel has are shorter, and such maps have no name: their
 * refusal is no news. */
#define SMALLEST_REAL 12u

COMMAND(create_map)
{
	const char *why = NULL;
	struct bp_map *map;
	const int error = bp_map_new(&map, attr, &why);

	if (error) {
		if (why && attr->map_name[0])
			bp_tell("%.16s: %s", attr->map_name, why);
		return error;
	}
	return make_file(MAP, map, map->type == BPF_MAP_TYPE_RINGBUF ? map->rings[0]->bell : -1);
}

RESULT(read_element, bp_map_read(file->map, KEY(attr), VALUE(attr), attr->flags))
RESULT(next_key, bp_map_next(file->map, KEY(attr), VALUE(attr)))
RESULT(freeze, bp_map_freeze(file->map))
RESULT(erase_element, file->map->type == BPF_MAP_TYPE_PERF_EVENT_ARRAY
			      ? bp_map_set_ring(file->map, *(const uint32_t *)KEY(attr), NULL)
			      : bp_map_erase(file->map, KEY(attr)))

COMMAND(take_element)
{
	const long error = read_element(file, attr);

	return error ? error : bp_map_erase(file->map, KEY(attr));
}

COMMAND(write_element)
{
	struct bpf_file *output;

	if (file->map->type != BPF_MAP_TYPE_PERF_EVENT_ARRAY)
		return bp_map_write(file->map, KEY(attr), VALUE(attr), attr->flags);
	output = file_of(*(const int *)VALUE(attr), OUTPUT);
	return output ? bp_map_set_ring(file->map, *(const uint32_t *)KEY(attr), output->ring) : -EINVAL;
}

COMMAND(load_program)
{
	/* Socket filters are what libbpf loads as trials. */
	static const uint32_t types = 1 << BPF_PROG_TYPE_SOCKET_FILTER | 1 << BPF_PROG_TYPE_KPROBE |
				      1 << BPF_PROG_TYPE_TRACEPOINT | 1 << BPF_PROG_TYPE_RAW_TRACEPOINT |
				      1 << BPF_PROG_TYPE_PERF_EVENT;
	struct bp_program *program;
	struct bp_load load = {.instructions = (const void *)attr->insns,
			       .n = attr->insn_cnt,
			       .type = attr->prog_type,
			       .name = attr->prog_name,
			       .fd_array = (const void *)attr->fd_array,
			       .map_of = map_of};
	int error;

	if (load.type >= 32 || !(types & 1u << load.type)) {
		if (load.n >= 20) /* bpftrace --info tries longer ones of these */
			bp_tell("%.16s: programs of type %u do not exist here: they run on events of user_events, at "
				"intervals, and at the beginning and end", load.name, load.type);
		return -EINVAL;
	}
	if (load.type == BPF_PROG_TYPE_KPROBE && attr->expected_attach_type) /* of several functions */
		return -EINVAL;
	if (!load.instructions)
		return -EFAULT;
	error = bp_program_load(&program, &load);
	if (attr->log_buf && attr->log_size)
		snprintf((char *)attr->log_buf, attr->log_size, "%s%s", load.why, *load.why ? "\n" : "");
	if (error && load.n >= SMALLEST_REAL && load.why[0])
		bp_tell("%.16s: %s", load.name, load.why);
	return error ? error : make_file(PROGRAM, program, -1);
}

COMMAND(run_program)
{
	uint64_t context[64] = {0};
	struct bp_record record;

	if (attr->test.ctx_size_in > sizeof(context))
		return -E2BIG;
	if (attr->test.ctx_in)
		memcpy(context, (const void *)attr->test.ctx_in, attr->test.ctx_size_in);
	bp_record_of_ourselves(&record);
	attr->test.retval = (uint32_t)bp_program_run(file->program, context, sizeof(context), &record);
	bp_ring_bells();
	return 0;
}

COMMAND(info)
{
	union {
		struct bpf_map_info map;
		struct bpf_prog_info program;
	} all = {0};
	const size_t size = file->kind == MAP ? sizeof(all.map) : file->kind == PROGRAM ? sizeof(all.program) : 0;
	const struct bp_program *program = file->program;

	if (file->kind == MAP) {
		bp_map_info(file->map, &all.map);
	} else if (file->kind == PROGRAM) {
		all.program = (struct bpf_prog_info){
			.type = program->type, .id = program->id, .gpl_compatible = 1, .run_cnt = program->runs};
		memcpy(all.program.name, program->name, sizeof(program->name));
	}
	if (!attr->info.info)
		return -EFAULT;
	if (size < attr->info.info_len)
		attr->info.info_len = (uint32_t)size;
	memcpy((void *)attr->info.info, &all, attr->info.info_len);
	return size ? 0 : -EINVAL;
}

enum { NEEDS_KEY = 1, NEEDS_VALUE = 2 };
#define NO_PINS "pinned maps and programs do not exist here: they live as long as this process"

/* kind: of the file whose descriptor is the first member of all these structs. Where there is no function:
 * the error, and why if that is news. Other commands are -EINVAL, and tools do without them: links (they
 * attach by ioctl), a program's BTF, batches. */
static const struct command {
	long (*run)(struct bpf_file *file, union bpf_attr *attr);
	enum kind kind;
	int needs, error;
	const char *why;
} commands[] = {
	[BPF_MAP_CREATE] = {create_map},
	[BPF_MAP_LOOKUP_ELEM] = {read_element, MAP, NEEDS_KEY | NEEDS_VALUE},
	[BPF_MAP_UPDATE_ELEM] = {write_element, MAP, NEEDS_KEY | NEEDS_VALUE},
	[BPF_MAP_DELETE_ELEM] = {erase_element, MAP, NEEDS_KEY},
	[BPF_MAP_GET_NEXT_KEY] = {next_key, MAP, NEEDS_VALUE},
	[BPF_MAP_LOOKUP_AND_DELETE_ELEM] = {take_element, MAP, NEEDS_KEY | NEEDS_VALUE},
	[BPF_MAP_FREEZE] = {freeze, MAP},
	[BPF_PROG_LOAD] = {load_program},
	[BPF_PROG_TEST_RUN] = {run_program, PROGRAM},
	[BPF_OBJ_GET_INFO_BY_FD] = {info, ANY_FILE},
	[BPF_BTF_GET_NEXT_ID] = {.error = ENOENT}, [BPF_MAP_GET_NEXT_ID] = {.error = ENOENT},
	[BPF_PROG_GET_NEXT_ID] = {.error = ENOENT}, [BPF_LINK_GET_NEXT_ID] = {.error = ENOENT},
	[BPF_OBJ_PIN] = {.error = EOPNOTSUPP, .why = NO_PINS}, [BPF_OBJ_GET] = {.error = EOPNOTSUPP, .why = NO_PINS},
	[BPF_RAW_TRACEPOINT_OPEN] = {.error = EOPNOTSUPP, .why = "raw tracepoints do not exist here: attach to "
								 "tracepoint/user_events/NAME"},
};

static long bpf_command(unsigned number, union bpf_attr *attr)
{
	static const struct command unknown;
	const struct command *command = number < sizeof(commands) / sizeof(*commands) ? &commands[number] : &unknown;
	struct bpf_file *file = NULL;

	if (command->why)
		bp_tell("%s", command->why);
	if (!command->run)
		return command->error ? -command->error : -EINVAL;
	if (command->kind && !(file = file_of((int)attr->map_fd, command->kind)))
		return -EBADF;
	if ((command->needs & NEEDS_KEY && !attr->key) || (command->needs & NEEDS_VALUE && !attr->value))
		return -EFAULT;
	return command->run(file, attr);
}

/* ---- perf_event_open(2) and ioctl(2) */

static long open_probe(const struct perf_event_attr *attr, pid_t pid, int cpu)
{
	const int is_clock = attr->type == PERF_TYPE_SOFTWARE;
	const uint64_t period = attr->freq && attr->sample_freq ? 1000000000u / attr->sample_freq
								: attr->sample_period;
	char event[sizeof(((struct bp_probe *)NULL)->event)] = "";
	struct bp_probe *probe;

	if (is_clock && !period)
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
	return make_file(PROBE, probe, -1);
}

static long open_event(const struct perf_event_attr *attr, pid_t pid, int cpu)
{
	static const char *const missing[PERF_TYPE_MAX] = {
		[PERF_TYPE_HARDWARE] = "hardware counters", [PERF_TYPE_HW_CACHE] = "hardware counters",
		[PERF_TYPE_RAW] = "hardware counters", [PERF_TYPE_BREAKPOINT] = "watchpoints",
		[PERF_TYPE_SOFTWARE] = "the kernel's software events, but cpu-clock,"};
	struct bp_ring *ring;
	int error;

	if (!attr)
		return -EFAULT;
	if (attr->type == PERF_TYPE_TRACEPOINT ||
	    (attr->type == PERF_TYPE_SOFTWARE &&
	     (attr->config == PERF_COUNT_SW_CPU_CLOCK || attr->config == PERF_COUNT_SW_TASK_CLOCK)))
		return open_probe(attr, pid, cpu);
	if (attr->type == PERF_TYPE_SOFTWARE && attr->config == PERF_COUNT_SW_BPF_OUTPUT) {
		error = bp_ring_new(&ring);
		return error ? error : make_file(OUTPUT, ring, ring->bell);
	}
	if (attr->type < PERF_TYPE_MAX)
		bp_tell("%s do not exist here: programs run on events of user_events", missing[attr->type]);
	else
		bp_tell(BP_NO_PROBES);
	return -ENOENT;
}

static long control(struct bpf_file *file, unsigned long request, void *argument)
{
	const int is_enabled = request == PERF_EVENT_IOC_ENABLE;
	struct bpf_file *program;

	if (request == PERF_EVENT_IOC_SET_BPF) {
		program = file_of((int)(intptr_t)argument, PROGRAM);
		if (file->kind == OUTPUT || !program)
			return -EINVAL;
		if (file->probe->program)
			return -EEXIST;
		bp_probe_attach(file->probe, program->program);
		return 0;
	}
	if (!is_enabled && request != PERF_EVENT_IOC_DISABLE)
		return -ENOTTY;
	if (file->kind == PROBE)
		return bp_probe_enable(file->probe, is_enabled);
	file->ring->is_enabled = is_enabled;
	return 0;
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

static long wrapped_bpf(unsigned command, void *user, unsigned size)
{
	struct ut_section section;
	union bpf_attr attr = {0};
	long result;

	if (!user) {
		errno = EFAULT;
		return -1;
	}
	size = size < sizeof(attr) ? size : sizeof(attr); /* of a newer tool */
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
		return wrapped_bpf((unsigned)a, (void *)b, (unsigned)c);
	if (number == SYS_perf_event_open)
		return begin(&section) ? -1 : end(&section, open_event((const void *)a, (pid_t)b, (int)c));
	result = ut_descriptor_call(&mine, number, a, b, c);
	return mine ? result : NEXT(syscall)(number, a, b, c, d, e, f);
}

WRAP(int, ioctl, (int fd, unsigned long request, void *argument))
{
	struct ut_section section;
	struct bpf_file *file;

	if (__builtin_expect(!ut_file_at(fd), 1))
		return NEXT(ioctl)(fd, request, argument);
	if (begin(&section))
		return -1;
	file = file_of(fd, ANY_FILE);
	if (file && (file->kind == PROBE || file->kind == OUTPUT))
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
		return (void *)UT_CALL(SYS_mmap, address, size, prot, flags, fd, offset);
	if (begin(&section))
		return MAP_FAILED;
	file = file_of(fd, ANY_FILE);
	if (file && file->kind == OUTPUT) {
		error = bp_ring_map(file->ring, size);
		memory = file->ring->memory;
	} else if (file && file->kind == MAP && file->map->type == BPF_MAP_TYPE_RINGBUF) {
		error = bp_ringbuf_may_map(file->map, size, prot, offset);
		memory = file->map->rings[0]->memory;
	} else if (file && file->kind == MAP) {
		memory = file->map->fd;
		error = memory < 0 ? -EINVAL : 0;
	}
	if (!error) {
		result = (void *)UT_CALL(SYS_mmap, address, size, prot, flags, memory, offset);
		error = result == MAP_FAILED ? -errno : 0;
	}
	(void)end(&section, error);
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
	return (int)UT_CALL(SYS_epoll_ctl, epoll, operation, fd, event);
}

/* bpftrace takes notice of signals only if they interrupt its wait. */
WRAP(int, epoll_wait, (int epoll, struct epoll_event *events, int most, int timeout_ms))
{
	if (bt_is_recording()) {
		int ready = (int)UT_CALL(SYS_epoll_pwait, epoll, events, most);
		int more = ready ? 0 : bp_replay();

		if (ready || more < 0) {
			errno = ready ? errno : EINTR;
			return ready ? ready : -1;
		}
		timeout_ms = more ? 0 : timeout_ms;
	}
	return (int)UT_CALL(SYS_epoll_pwait, epoll, events, most, timeout_ms);
}

/* bpf(2) of a kernel is root's. Only for programs that have libbpf: a shell with two different users behaves
 * otherwise. */
WRAP(uid_t, geteuid, (void))
{
	return dlsym(RTLD_DEFAULT, "bpf_object__open_mem") ? 0 : (uid_t)UT_CALL(SYS_geteuid);
}

/* Locked memory for maps, in kernels before 5.11. */
WRAP(int, setrlimit, (int resource, const struct rlimit *limit))
{
	return resource == RLIMIT_MEMLOCK ? 0 : (int)UT_CALL(SYS_prlimit64, 0, resource, limit);
}
ALIAS(int, setrlimit64, setrlimit, (int resource, const struct rlimit *limit))

/* The command that a tool starts (bpftrace -c) is not one itself. */
__attribute__((constructor)) static void start(void)
{
	const char *theirs = getenv("UTRACEFS_BPF_CHILD_PRELOAD");
	const int copy = NEXT(fcntl)(STDERR_FILENO, F_DUPFD_CLOEXEC, (void *)(intptr_t)UT_FIRST_FD);

	if (copy >= 0)
		(void)ut_take(&messages, copy, UT_ANY);
	if (!theirs)
		return;
	if (*theirs)
		setenv("LD_PRELOAD", theirs, 1);
	else
		unsetenv("LD_PRELOAD");
	unsetenv("UTRACEFS_BPF_CHILD_PRELOAD");
}
