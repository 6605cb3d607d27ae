#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "preload_tree.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <glob.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "preload_bpf.h"
#include "preload_next.h"

/* An event that the tool has read about. */
struct seen {
	struct seen *next;
	uint32_t id; /* 0: not read */
	struct bt_layout *shown; /* NULL: its format was not read */
	char name[]; /* SYSTEM:NAME */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct seen *all;
/* In place of a layout: the record unchanged; none. */
static char unchanged, other_fields;

/* ---- events; with `lock` held */

static struct seen *find_seen(const char *system, const char *name)
{
	const size_t length = strlen(system);

	for (struct seen *one = all; one; one = one->next)
		if (strncmp(one->name, system, length) == 0 && one->name[length] == ':' &&
		    strcmp(one->name + length + 1, name) == 0)
			return one;
	return NULL;
}

static struct seen *see(const char *system, const char *name)
{
	struct seen *one = find_seen(system, name);

	if (one)
		return one;
	one = calloc(1, sizeof(*one) + strlen(system) + strlen(name) + 2);
	if (!one)
		return NULL;
	sprintf(one->name, "%s:%s", system, name);
	one->next = all;
	all = one;
	return one;
}

int bt_event_name(uint32_t id, char *name, size_t size)
{
	int error = -ENOENT;

	pthread_mutex_lock(&lock);
	for (const struct seen *one = all; one && error; one = one->next)
		if (id && one->id == id)
			error = (size_t)snprintf(name, size, "%s", one->name) < size ? 0 : -ENOENT;
	pthread_mutex_unlock(&lock);
	return error;
}

int bt_events_read(char *words, size_t size)
{
	size_t used = 0;

	pthread_mutex_lock(&lock);
	words[0] = 0;
	for (const struct seen *one = all; one && used < size; one = one->next)
		used += (size_t)snprintf(words + used, size - used, "%s%s", used ? " " : "", one->name);
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
			bp_tell("%s was registered again with other fields: start again to see its records",
				seen->name);
		}
	}
	pthread_mutex_unlock(&lock);
	return made;
}

const void *bt_context(struct bt_layout **layout, const struct utracefs_stream_record *record, size_t *size)
{
	if (!*layout)
		*layout = choose_layout(record->event);
	if (*layout == (void *)&unchanged) {
		*size = record->size;
		return record->data;
	}
	return *layout == (void *)&other_fields ? NULL :
						  bt_layout_apply(*layout, record->data, record->size, size);
}

int bt_is_recording(void)
{
	static atomic_int is_one; /* 0: not looked yet; else 1 more than the answer */

	if (!is_one)
		is_one = 1 + (getenv("UTRACEFS_BPF_RECORDING") != NULL);
	return is_one - 1;
}

/* ---- contents */

/* The part behind the root of a tracefs; NULL: another file. "btf": the kernel's types. */
static const char *in_tree(const char *path)
{
	static const char *const roots[] = {"/sys/kernel/tracing", "/sys/kernel/debug/tracing"};

	if (!path || strncmp(path, "/sys/kernel/", 12))
		return NULL;
	if (strcmp(path, "/sys/kernel/btf/vmlinux") == 0)
		return "btf";
	for (size_t i = 0; i < sizeof(roots) / sizeof(roots[0]); i++) {
		const size_t length = strlen(roots[i]);

		if (strncmp(path, roots[i], length) == 0 && (path[length] == '/' || path[length] == '\0'))
			return path + length + strspn(path + length, "/");
	}
	return NULL;
}

/* The tool reads a file of an event: notes that. *data becomes the text that it sees. */
static int note_event(const char *path, char **data, size_t *size)
{
	char system[64], name[256], file[16];
	struct bt_layout *layout = NULL;
	struct seen *seen;
	int error = 0;

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
			bp_tell("%s: its records describe themselves (EventHeader); a program sees only the "
				"fields of their header",
				name);
	} else if (strcmp(file, "id") != 0) {
		return 0;
	}
	pthread_mutex_lock(&lock);
	seen = see(system, name);
	if (!seen) {
		error = -ENOMEM;
	} else if (layout) {
		bt_layout_free(seen->shown);
		seen->shown = layout;
	} else {
		seen->id = (uint32_t)strtoul(*data, NULL, 10);
	}
	pthread_mutex_unlock(&lock);
	return error;
}

/* The content of a file; 0, or -errno; -EISDIR for a directory. *data is a block for free(3). */
static int read_tree(const char *path, char **data, size_t *size)
{
	struct utracefs_stream *stream;
	int error;

	if (!path[0])
		return -EISDIR;
	*size = 0;
	if (strcmp(path, "btf") == 0 || strcmp(path, "available_filter_functions") == 0) {
		*data = path[0] == 'b' ? bt_vmlinux(size) : strdup("");
		return *data ? 0 : -ENOMEM;
	}
	if (strcmp(path, "available_events") != 0 && strncmp(path, "events/", 7) != 0 && strcmp(path, "events") != 0)
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

static int compare_texts(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

/* glob(3) of paths of events, EVENTS/SYSTEM/NAME with a file behind it or not. root: the part of the pattern
 * in front of `inside`. libc's globfree frees the result. */
static int glob_events(const char *root, const char *inside, int flags, glob_t *found)
{
	const size_t length = (size_t)(inside - root);
	char system[256], name[256], *data, *line, *rest;
	const size_t before = flags & GLOB_APPEND ? found->gl_pathc : 0;
	size_t size, count = before;
	int behind = 0;

	if (!(flags & GLOB_DOOFFS))
		found->gl_offs = 0;
	if (!(flags & GLOB_APPEND)) {
		found->gl_pathc = 0;
		found->gl_pathv = NULL;
	}
	if (sscanf(inside, "events/%255[^/]/%255[^/]%n", system, name, &behind) != 2 || !behind)
		return GLOB_NOMATCH;
	if (read_tree("available_events", &data, &size))
		return GLOB_ABORTED;
	for (rest = data; (line = strsep(&rest, "\n"));) {
		char *event = strchr(line, ':'), **paths;

		if (!event)
			continue;
		*event++ = '\0';
		if (fnmatch(system, line, 0) || fnmatch(name, event, 0))
			continue;
		paths = realloc(found->gl_pathv, (found->gl_offs + count + 2) * sizeof(*paths));
		if (!paths)
			break;
		if (!count)
			memset(paths, 0, found->gl_offs * sizeof(*paths));
		found->gl_pathv = paths;
		paths += found->gl_offs + count;
		paths[0] = paths[1] = NULL;
		if (asprintf(&paths[0], "%.*sevents/%s/%s%s", (int)length, root, line, event, inside + behind) < 0)
			break;
		found->gl_pathc = ++count;
	}
	free(data);
	if (count > before)
		qsort(found->gl_pathv + found->gl_offs + before, count - before, sizeof(char *), compare_texts);
	return line ? GLOB_NOSPACE : count > before ? 0 : GLOB_NOMATCH;
}

/* A descriptor at the beginning of the content, or -errno. */
static int open_tree(const char *path, int flags)
{
	char system[64], name[64], last;
	char *data = NULL;
	size_t size;
	int error, fd = -1;

	if ((flags & O_ACCMODE) != O_RDONLY) {
		if (strstr(path, "probe_events"))
			bp_tell(BP_NO_PROBES);
		return -EACCES;
	}
	error = read_tree(path, &data, &size);
	if (!error)
		error = note_event(path, &data, &size);
	else if (error == -ENOENT && sscanf(path, "events/%63[^/]/%63[^/]/%c", system, name, &last) == 3)
		bp_tell(bt_is_recording() ? "%s:%s: no recording has this event" :
			strcmp(system, "user_events") ?
					    "%s:%s: no program has registered this event; the kernel's own do not "
					    "exist here" :
					    "%s:%s: no program has registered this event; start one first, or declare "
					    "it by `utracefs reg`",
			system, name);
	if (!error) {
		fd = memfd_create("tracefs", flags & O_CLOEXEC ? MFD_CLOEXEC : 0);
		/* Its descriptor stays at the beginning. */
		if (fd < 0 || NEXT(pwrite)(fd, data, size, 0) != (ssize_t)size)
			error = fd < 0 ? -errno : -ENOMEM;
	}
	free(data);
	if (error && fd >= 0)
		NEXT(close)(fd);
	return error ? error : fd;
}

static int stat_tree(const char *path, struct stat *found)
{
	size_t size = 0;
	char *data = NULL;
	const int error = read_tree(path, &data, &size);

	free(data);
	if (error && error != -EISDIR)
		return error;
	if (found) {
		memset(found, 0, sizeof(*found));
		found->st_mode = error ? S_IFDIR | 0555 : S_IFREG | 0444;
		found->st_size = (off_t)size;
		found->st_nlink = 1;
	}
	return 0;
}

/* As a call of libc: -1 and errno. */
static int result(int value)
{
	if (value >= 0)
		return value;
	errno = -value;
	return -1;
}

/* ---- the wrapped calls */

WRAP(int, openat, (int folder, const char *path, int flags, mode_t mode))
{
	const char *inside = in_tree(path);

	return inside ? result(open_tree(inside, flags)) : NEXT(openat)(folder, path, flags, mode);
}
ALIAS(int, openat64, openat, (int folder, const char *path, int flags, mode_t mode))

WRAP(int, open, (const char *path, int flags, mode_t mode))
{
	return ut_wrap_openat(AT_FDCWD, path, flags, mode);
}
ALIAS(int, open64, open, (const char *path, int flags, mode_t mode))

/* _FORTIFY_SOURCE calls this for an open without a mode. */
WRAP(int, __open_2, (const char *path, int flags))
{
	return ut_wrap_open(path, flags, 0);
}
ALIAS(int, __open64_2, __open_2, (const char *path, int flags))

WRAP(FILE *, fopen, (const char *path, const char *mode))
{
	const char *inside = in_tree(path);
	int fd;

	if (!inside)
		return NEXT(fopen)(path, mode);
	fd = result(open_tree(inside, (mode[0] == 'r' && !strchr(mode, '+') ? O_RDONLY : O_RDWR) |
					      (strchr(mode, 'e') ? O_CLOEXEC : 0)));
	return fd < 0 ? NULL : NEXT(fdopen)(fd, mode);
}
ALIAS(FILE *, fopen64, fopen, (const char *path, const char *mode))

WRAP(int, glob, (const char *pattern, int flags, int (*failed)(const char *, int), glob_t *found))
{
	const char *inside = in_tree(pattern);
	int (*next)(const char *, int, int (*)(const char *, int), glob_t *);

	if (inside)
		return glob_events(pattern, inside, flags, found);
	next = dlsym(RTLD_NEXT, "glob");
	return next(pattern, flags, failed, found);
}
ALIAS(int, glob64, glob, (const char *pattern, int flags, int (*failed)(const char *, int), glob_t *found))

WRAP(int, faccessat, (int folder, const char *path, int mode, int flags))
{
	const char *inside = in_tree(path);

	if (inside)
		return result(mode & W_OK ? -EACCES : stat_tree(inside, NULL));
	return (int)(flags ? ut_system_call(SYS_faccessat2, folder, (long)path, mode, flags, 0, 0) :
			     ut_system_call(SYS_faccessat, folder, (long)path, mode, 0, 0, 0));
}

WRAP(int, access, (const char *path, int mode))
{
	return ut_wrap_faccessat(AT_FDCWD, path, mode, 0);
}

WRAP(int, fstatat, (int folder, const char *path, struct stat *found, int flags))
{
	const char *inside = in_tree(path);

	return inside ? result(stat_tree(inside, found)) :
			(int)ut_system_call(SYS_newfstatat, folder, (long)path, (long)found, flags, 0, 0);
}
ALIAS(int, fstatat64, fstatat, (int folder, const char *path, struct stat *found, int flags))

WRAP(int, stat, (const char *path, struct stat *found))
{
	return ut_wrap_fstatat(AT_FDCWD, path, found, 0);
}
ALIAS(int, stat64, stat, (const char *path, struct stat *found))
