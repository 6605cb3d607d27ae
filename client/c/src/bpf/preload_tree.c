/*
 * Files of tracefs for tools of eBPF, from the daemon; no mount is needed. The names of
 * /sys/kernel/tracing and /sys/kernel/debug/tracing are answered here:
 *
 *     available_events, events/SYSTEM/NAME/id    as the daemon has them
 *     events/SYSTEM/NAME/format                  as layout.h shows it
 *     available_filter_functions                 empty: there are no functions
 *     /sys/kernel/btf/vmlinux                    the types that a format can name
 *
 * and the directories that lead there. Others do not exist. A call that gets such a name gets the one of a
 * copy of that moment, /proc/self/fd/N, instead.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <glob.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "preload_bpf.h"
#include "preload_next.h"

#define MOST_NAME 320u

/* An event that the tool has read about. */
struct seen {
	struct seen *next;
	uint32_t id; /* 0: not read */
	struct bt_layout *shown; /* NULL: its format was not read */
	char name[MOST_NAME]; /* SYSTEM:NAME */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct seen *all;
/* In place of a layout: the record unchanged; none. */
static char unchanged, other_fields;

/* ---- events; with `lock` held */

static struct seen *find_seen(const char *system, const char *name)
{
	char full[MOST_NAME];
	struct seen *one;

	snprintf(full, sizeof(full), "%s:%s", system, name);
	for (one = all; one && strcmp(one->name, full); one = one->next) {
	}
	return one;
}

int bt_event_name(uint32_t id, char *name, size_t size)
{
	const struct seen *one;

	pthread_mutex_lock(&lock);
	for (one = all; one && (!id || one->id != id); one = one->next) {
	}
	pthread_mutex_unlock(&lock); /* they stay */
	return one && (size_t)snprintf(name, size, "%s", one->name) < size ? 0 : -ENOENT;
}

int bt_events_read(char *words, size_t size)
{
	size_t used;

	pthread_mutex_lock(&lock);
	used = (size_t)snprintf(words, size, " ");
	for (const struct seen *one = all; one && used < size; one = one->next)
		used += (size_t)snprintf(words + used, size - used, "%s ", one->name);
	pthread_mutex_unlock(&lock);
	return used < size ? 0 : -E2BIG;
}

static struct bt_layout *choose_layout(const struct utracefs_stream_event *event)
{
	struct bt_layout *made = (void *)&unchanged;
	const struct seen *seen;

	pthread_mutex_lock(&lock);
	seen = find_seen(event->system, event->name);
	if (seen && seen->shown) {
		made = bt_layout_new(event->format);
		if (!made || !bt_layout_is_same(made, seen->shown)) {
			bt_layout_free(made);
			made = (void *)&other_fields;
			bp_tell("%s was registered again with other fields: start again to see its records", seen->name);
		}
	}
	pthread_mutex_unlock(&lock);
	return made;
}

const void *bt_context(struct bt_layout **layout, const struct utracefs_stream_record *record, size_t *size)
{
	if (!*layout)
		*layout = choose_layout(record->event);
	*size = record->size;
	return *layout == (void *)&unchanged      ? record->data
	       : *layout == (void *)&other_fields ? NULL
						  : bt_layout_apply(*layout, record->data, record->size, size);
}

int bt_is_recording(void)
{
	return getenv("UTRACEFS_BPF_RECORDING") != NULL;
}

/* ---- contents */

/* The part behind the root of a tracefs; NULL: another file. "btf": the kernel's types. */
static const char *in_tree(const char *path)
{
	if (!path || strncmp(path, "/sys/kernel/", 12))
		return NULL;
	path += 12;
	if (strcmp(path, "btf/vmlinux") == 0)
		return "btf";
	path += strncmp(path, "debug/", 6) ? 0 : 6;
	if (strncmp(path, "tracing", 7) || (path[7] != '/' && path[7] != '\0'))
		return NULL;
	return path + 7 + strspn(path + 7, "/");
}

/* The tool reads a file of an event: notes that. *data becomes the text that it sees. */
static int note_event(const char *path, char **data, size_t *size)
{
	char system[64], name[256], file[16];
	struct bt_layout *layout = NULL;
	struct seen *seen;

	if (sscanf(path, "events/%63[^/]/%255[^/]/%15s", system, name, file) != 3)
		return 0;
	if (strcmp(file, "format") == 0) {
		layout = bt_layout_new(*data);
		free(*data);
		*data = layout ? strdup(bt_layout_text(layout)) : NULL;
		if (!*data) {
			bp_tell("%s: its fields have no layout in C", name);
			bt_layout_free(layout);
			return -EINVAL;
		}
		*size = strlen(*data);
		if (strstr(*data, "unsigned char eventheader_flags;"))
			bp_tell("%s: its records describe themselves (EventHeader); a program sees only the fields of "
				"their header", name);
	}
	pthread_mutex_lock(&lock);
	seen = find_seen(system, name);
	if (!seen && (seen = calloc(1, sizeof(*seen)))) {
		snprintf(seen->name, sizeof(seen->name), "%s:%s", system, name);
		seen->next = all;
		all = seen;
	}
	if (seen && layout) {
		bt_layout_free(seen->shown);
		seen->shown = layout;
	} else if (seen && strcmp(file, "id") == 0) {
		seen->id = (uint32_t)strtoul(*data, NULL, 10);
	}
	pthread_mutex_unlock(&lock);
	return seen ? 0 : -ENOMEM;
}

/* The content of a file; 0, or -errno; -EISDIR for a directory. *data is a block for free(3). */
static int read_tree(const char *path, char **data, size_t *size)
{
	struct utracefs_stream *stream;
	int error;

	*size = 0;
	if (strcmp(path, "btf") == 0 || strcmp(path, "available_filter_functions") == 0) {
		*data = path[0] == 'b' ? bt_vmlinux(size) : strdup("");
		return *data ? 0 : -ENOMEM;
	}
	if (!path[0] || strcmp(path, "events") == 0)
		return -EISDIR;
	if (strcmp(path, "available_events") && strncmp(path, "events/", 7))
		return -ENOENT;
	stream = utracefs_stream_new(NULL);
	if (!stream)
		return -ENOMEM;
	error = utracefs_stream_read_file(stream, path, data, size);
	if (error && error != -EISDIR && strncmp(utracefs_stream_error(stream), path, strlen(path)))
		bp_tell("%s", utracefs_stream_error(stream)); /* of the connection, not of the file */
	utracefs_stream_close(stream);
	return error;
}

static void tell_missing(const char *path)
{
	char system[64], name[64], last;

	if (sscanf(path, "events/%63[^/]/%63[^/]/%c", system, name, &last) == 3)
		bp_tell("%s:%s: %s", system, name,
			bt_is_recording() ? "no recording has this event"
			: strcmp(system, "user_events")
				? "no program has registered this event; the kernel's own do not exist here"
				: "no program has registered this event; start one first, or declare it by "
				  "`utracefs reg` or `utracefs bpftrace --reg`");
}

enum use { LOOKS, READS, WRITES };

/* For a wrapped call with a path. Of a file here: *path becomes that of a copy, and the result is its
 * descriptor, to be closed behind the call. -1: the call fails, with errno. Else -2. */
static int redirect(const char **path, char copy[32], enum use use)
{
	const char *inside = in_tree(*path);
	char *data = NULL;
	size_t size;
	int error, fd = -1;

	if (!inside)
		return -2;
	if (use == WRITES && strstr(inside, "probe_events"))
		bp_tell(BP_NO_PROBES);
	error = use == WRITES ? -EACCES : read_tree(inside, &data, &size);
	if (error == -EISDIR) {
		*path = "/";
		return -2;
	}
	if (!error && use == READS)
		error = note_event(inside, &data, &size);
	else if (error == -ENOENT && use == READS)
		tell_missing(inside);
	if (!error) {
		fd = memfd_create("tracefs", MFD_CLOEXEC);
		if (fd < 0 || NEXT(write)(fd, data, size) != (ssize_t)size)
			error = fd < 0 ? -errno : -ENOMEM;
	}
	free(data);
	if (error) {
		if (fd >= 0)
			NEXT(close)(fd);
		errno = -error;
		return -1;
	}
	snprintf(copy, 32, "/proc/self/fd/%d", fd);
	*path = copy;
	return fd;
}

static int compare_texts(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

/* glob(3) of paths of events, ROOT/events/SYSTEM/NAME with a file behind it or not. inside: behind ROOT. */
static int glob_events(const char *pattern, const char *inside, glob_t *found)
{
	char system[256], name[256], *data, *line, *rest, **path;
	int behind = 0;
	size_t size;

	*found = (glob_t){0};
	if (sscanf(inside, "events/%255[^/]/%255[^/]%n", system, name, &behind) != 2)
		return GLOB_NOMATCH;
	if (read_tree("available_events", &data, &size))
		return GLOB_ABORTED;
	path = found->gl_pathv = calloc(size / strlen("s:e\n") + 1, sizeof(*path));
	for (rest = data; path && (line = strsep(&rest, "\n"));) {
		char *event = strchr(line, ':');

		if (!event)
			continue;
		*event++ = '\0';
		if (!fnmatch(system, line, 0) && !fnmatch(name, event, 0) &&
		    asprintf(path, "%.*sevents/%s/%s%s", (int)(inside - pattern), pattern, line, event,
			     inside + behind) > 0)
			path++;
	}
	free(data);
	if (!path)
		return GLOB_NOSPACE;
	found->gl_pathc = (size_t)(path - found->gl_pathv);
	qsort(found->gl_pathv, found->gl_pathc, sizeof(*path), compare_texts);
	return found->gl_pathc ? 0 : GLOB_NOMATCH;
}

/* ---- the wrapped calls */

#define OF_PATH(type, name, arguments, failed, use, call)                        \
	WRAP(type, name, arguments)                                              \
	{                                                                        \
		char copy[32];                                                   \
		const int copied = redirect(&path, copy, use);                   \
		type const result = copied == -1 ? (failed) : (type)(call);      \
                                                                                 \
		if (copied >= 0)                                                 \
			NEXT(close)(copied);                                     \
		return result;                                                   \
	}
#define BY_FLAGS ((flags & O_ACCMODE) == O_RDONLY ? READS : WRITES)
#define BY_MODE (mode & W_OK ? WRITES : LOOKS)

OF_PATH(int, open, (const char *path, int flags, mode_t mode), -1, BY_FLAGS, NEXT(open)(path, flags, mode))
ALIAS(int, open64, open, (const char *path, int flags, mode_t mode))
OF_PATH(int, openat, (int folder, const char *path, int flags, mode_t mode), -1, BY_FLAGS,
	NEXT(openat)(folder, path, flags, mode))
ALIAS(int, openat64, openat, (int folder, const char *path, int flags, mode_t mode))
/* _FORTIFY_SOURCE calls this for an open without a mode. */
OF_PATH(int, __open_2, (const char *path, int flags), -1, BY_FLAGS, NEXT(__open_2)(path, flags))
ALIAS(int, __open64_2, __open_2, (const char *path, int flags))
OF_PATH(FILE *, fopen, (const char *path, const char *mode), NULL, strpbrk(mode, "wa+") ? WRITES : READS,
	NEXT(fopen)(path, mode))
ALIAS(FILE *, fopen64, fopen, (const char *path, const char *mode))
OF_PATH(int, access, (const char *path, int mode), -1, BY_MODE,
	UT_CALL(SYS_faccessat, AT_FDCWD, path, mode))
/* libbpf since 1.4, of its types. */
OF_PATH(int, faccessat, (int folder, const char *path, int mode, int flags), -1, BY_MODE,
	UT_CALL(flags ? SYS_faccessat2 : SYS_faccessat, folder, path, mode, flags))
OF_PATH(int, stat, (const char *path, struct stat *found), -1, LOOKS,
	UT_CALL(SYS_newfstatat, AT_FDCWD, path, found))
ALIAS(int, stat64, stat, (const char *path, struct stat *found))

WRAP(int, glob, (const char *pattern, int flags, int (*failed)(const char *, int), glob_t *found))
{
	const char *inside = in_tree(pattern);
	int (*next)(const char *, int, int (*)(const char *, int), glob_t *) = dlsym(RTLD_NEXT, "glob");

	return inside ? glob_events(pattern, inside, found) : next(pattern, flags, failed, found);
}
ALIAS(int, glob64, glob, (const char *pattern, int flags, int (*failed)(const char *, int), glob_t *found))
