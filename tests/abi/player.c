/* player SCRIPT TREE [ASK ANSWER] - plays a script of tests/conformance against the tracefs at TREE.
 *
 * It knows <linux/user_events.h> and system calls, nothing of utracefs: what answers is whatever lies behind
 * TREE/user_events_data. The transcript goes to stdout in the form of tests/conformance/6.12.117.
 * ASK and ANSWER are descriptors of someone who opens perf events: a line is written to ASK, lines come
 * from ANSWER up to one that is ".".
 */
#define _GNU_SOURCE
#include <linux/user_events.h>

#include "script.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define MAX_SLOTS 4096
#define MAX_FILES 64
#define MAX_CONTENT (8u << 20)
#define MAX_RECORD (1u << 20)

static const char TRACING[] = "/sys/kernel/tracing";
static const char *tree;
static FILE *ask, *answer;
static uint64_t slots[MAX_SLOTS]; /* enable words: 4 bytes at the start of each, bit 0 */
static int slot_count;
static int quiet; /* the operation is `q ...`: it is not echoed */
static unsigned char content[MAX_CONTENT];

static struct {
	char name[32];
	int fd;
} files[MAX_FILES];

/* Registrations in order. Words of a closed file stay. */
static struct registration {
	char file[32];
	char event[256];
	uint32_t write_index;
	int slot;
	int is_live;
} registrations[MAX_SLOTS];
static int registration_count;

static void result(const char *what, long value)
{
	if (value < 0)
		printf("= %s: %s\n", what, errno_text());
	else
		printf("= %s: %ld\n", what, value);
}

static void ok_or_errno(const char *what, int status)
{
	if (status < 0)
		printf("= %s: %s\n", what, errno_text());
	else
		puts("= ok");
}

static const char *in_tree(const char *path)
{
	static char full[4096];

	if (*path == '/')
		return path;
	snprintf(full, sizeof(full), "%s/%s", tree, path);
	return full;
}

static int file(const char *name)
{
	for (int i = 0; i < MAX_FILES; i++)
		if (!strcmp(files[i].name, name))
			return files[i].fd;
	return -1;
}

static void keep_file(const char *name, int fd)
{
	int i = 0;

	if (fd < 0) {
		printf("= open: %s\n", errno_text());
		return;
	}
	while (i < MAX_FILES - 1 && files[i].name[0] && strcmp(files[i].name, name))
		i++;
	snprintf(files[i].name, sizeof(files[i].name), "%s", name);
	files[i].fd = fd;
	puts("= open: ok");
}

static struct registration *registered(const char *file_name, const char *event)
{
	for (int i = registration_count - 1; i >= 0; i--)
		if (!strcmp(registrations[i].file, file_name) && !strcmp(registrations[i].event, event))
			return &registrations[i];
	return NULL;
}

/* The operations; `rest` is the line behind the operation's name. */

static void op_open(char *rest)
{
	keep_file(word(&rest), open(in_tree("user_events_data"), O_RDWR));
}

static void op_fopen(char *rest)
{
	char *name = word(&rest), *path = word(&rest), *mode = word(&rest);
	int flags = !strcmp(mode, "r") ? O_RDONLY : !strcmp(mode, "w") ? O_WRONLY : O_RDWR;

	keep_file(name, open(in_tree(path), flags));
}

static void op_close(char *rest)
{
	char *name = word(&rest);

	for (int i = 0; i < MAX_FILES; i++)
		if (!strcmp(files[i].name, name)) {
			result("close", close(files[i].fd));
			files[i].name[0] = '\0';
			return;
		}
	puts("= NOFD");
}

static void op_reg(char *rest)
{
	static unsigned char command[70000];
	char *name = word(&rest);
	struct registration *made = &registrations[registration_count];
	struct user_reg reg = {.size = sizeof(reg), .enable_size = 4, .write_index = 0xdeadbeef};
	int slot = slot_count++;

	decode(rest, command);
	reg.enable_addr = (uintptr_t)&slots[slot];
	reg.name_args = (uintptr_t)command;
	if (ioctl(file(name), DIAG_IOCSREG, &reg) < 0) {
		printf("= reg: %s\n", errno_text());
		return;
	}
	snprintf(made->file, sizeof(made->file), "%s", name);
	snprintf(made->event, sizeof(made->event), "%.*s", (int)strcspn((char *)command, " :"), command);
	made->write_index = reg.write_index;
	made->slot = slot;
	made->is_live = 1;
	registration_count++;
	if (!quiet)
		printf("= reg: 0 write_index=%u enable_slot=%d word=%#lx\n", reg.write_index, slot,
		       (unsigned long)*(volatile uint64_t *)&slots[slot]);
}

static void op_unregall(char *rest)
{
	char *name = word(&rest);
	int done[2] = {0, 0};

	for (int i = 0; i < registration_count; i++) {
		struct user_unreg unreg = {.size = sizeof(unreg)};

		if (!registrations[i].is_live || strcmp(registrations[i].file, name))
			continue;
		unreg.disable_addr = (uintptr_t)&slots[registrations[i].slot];
		done[ioctl(file(name), DIAG_IOCSUNREG, &unreg) < 0]++;
		registrations[i].is_live = 0;
	}
	printf("= unregall: %d ok %d failed\n", done[0], done[1]);
}

static void op_del(char *rest)
{
	static unsigned char event[70000];
	char *name = word(&rest);

	decode(rest, event);
	result("del", ioctl(file(name), DIAG_IOCSDEL, event));
}

static void op_state(char *rest)
{
	char *name = word(&rest);
	struct registration *found = registered(name, word(&rest) + 1);

	if (found)
		printf("= enable_slot=%d word=%#lx\n", found->slot,
		       (unsigned long)*(volatile uint64_t *)&slots[found->slot]);
	else
		puts("= NOEVENT");
}

enum how { WRITEV, WRITE, PWRITE };

/* FILE @EVENT|INDEX FIELDS; pwrite has a position before the event. */
static void write_record(char *rest, enum how how)
{
	static unsigned char record[MAX_RECORD];
	static const char *const calls[] = {"writev", "write", "pwrite"};
	char *name = word(&rest), *which;
	long position = how == PWRITE ? strtol(word(&rest), NULL, 0) : 0;
	struct registration *found;
	int32_t index;
	size_t n;
	ssize_t written;

	which = word(&rest);
	if (*which == '@') {
		found = registered(name, which + 1);
		if (!found) {
			printf("= NOEVENT %s\n", which);
			return;
		}
		index = (int32_t)found->write_index;
	} else {
		index = (int32_t)strtol(which, NULL, 0);
	}
	memcpy(record, &index, 4);
	n = fields(rest, record + 4);
	if (how == WRITEV) {
		struct iovec parts[] = {{record, 4}, {record + 4, n}};

		written = writev(file(name), parts, 2);
	} else if (how == WRITE) {
		written = write(file(name), record, n + 4);
	} else {
		written = pwrite(file(name), record, n + 4, position);
	}
	if (quiet)
		printf("~ %s ", name);
	else
		fputs("= ", stdout);
	if (written < 0)
		printf("%s: %s bytes=", calls[how], errno_text());
	else
		printf("%zd bytes=", written);
	if (n + 4 > 512) {
		printf("(%zu)\n", n + 4);
		return;
	}
	for (size_t i = 0; i < n + 4; i++)
		printf("%02x%s", record[i], i == 3 ? "," : "");
	putchar('\n');
}

static void op_write(char *rest)
{
	write_record(rest, WRITEV);
}

static void op_write1(char *rest)
{
	write_record(rest, WRITE);
}

static void op_pwrite(char *rest)
{
	write_record(rest, PWRITE);
}

static void op_rawwrite(char *rest)
{
	unsigned char bytes[4096];
	char *name = word(&rest);
	size_t n = fields(rest, bytes);

	result("write", write(file(name), bytes, n));
}

/* FILE PIECE | PIECE ...: one writev of the unchanged pieces, which include the index. */
static void op_wv(char *rest)
{
	unsigned char bytes[65536], *at = bytes;
	struct iovec parts[16];
	char *name = word(&rest), *piece;
	int count = 0;
	ssize_t written;

	while ((piece = strsep(&rest, "|")) && count < 16) {
		parts[count].iov_base = at;
		parts[count].iov_len = fields(piece, at);
		at += parts[count++].iov_len;
	}
	written = writev(file(name), parts, count);
	if (written < 0)
		printf("= writev: %s\n", errno_text());
	else
		printf("= writev: %zd of %d pieces\n", written, count);
}

/* FILE @EVENT GOOD BAD: a payload of GOOD readable bytes and BAD others, then an unreadable index. */
static void op_writebad(char *rest)
{
	char *name = word(&rest);
	struct registration *found = registered(name, word(&rest) + 1);
	size_t good = strtoul(word(&rest), NULL, 0), bad = strtoul(word(&rest), NULL, 0);
	int32_t index = found ? (int32_t)found->write_index : 0;
	char *pages = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct iovec parts[] = {{&index, 4}, {pages + 4096 - good, good + bad}};

	memset(pages, 1, 4096);
	mprotect(pages + 4096, 4096, PROT_NONE);
	result("writev", writev(file(name), parts, 2));
	if (write(file(name), pages + 4096, 4) < 0)
		printf("= write, unreadable index: %s\n", errno_text());
	else
		puts("= write, unreadable index: written");
	munmap(pages, 8192);
}

static void op_cat(char *rest)
{
	size_t n = 0;
	ssize_t got = 0;
	int fd = open(in_tree(word(&rest)), O_RDONLY);

	if (fd < 0) {
		printf("= open: %s\n", errno_text());
		return;
	}
	while (n + 65536 <= MAX_CONTENT && (got = read(fd, content + n, 65536)) > 0)
		n += (size_t)got;
	show(content, n);
	if (got < 0)
		printf("= read: %s after %zu bytes\n", errno_text(), n);
	else
		printf("= eof %zu bytes\n", n);
	close(fd);
}

static void put(char *rest, int flags, const char *end)
{
	static unsigned char text[70000];
	int fd = open(in_tree(word(&rest)), O_WRONLY | O_CREAT | flags, 0644);
	size_t n;
	ssize_t written;

	if (fd < 0) {
		printf("= open: %s\n", errno_text());
		return;
	}
	n = decode(rest, text);
	memcpy(text + n, end, strlen(end));
	n += strlen(end);
	written = write(fd, text, n);
	if (written >= 0 && (size_t)written != n)
		printf("= write: %zd (short, of %zu)\n", written, n);
	else
		result("write", written);
	close(fd);
}

static void op_w(char *rest)
{
	put(rest, O_TRUNC, "\n");
}

static void op_wn(char *rest)
{
	put(rest, O_TRUNC, "");
}

static void op_wa(char *rest)
{
	put(rest, O_APPEND, "\n");
}

static void op_fread(char *rest)
{
	char *name = word(&rest);
	ssize_t got = read(file(name), content, strtoul(word(&rest), NULL, 0));

	if (got > 0)
		show(content, (size_t)got);
	result("read", got);
}

static void op_lseek(char *rest)
{
	char *name = word(&rest);

	result("lseek", lseek(file(name), atol(rest), SEEK_SET));
}

static void op_ioctl(char *rest)
{
	char *name = word(&rest);

	result("ioctl", ioctl(file(name), strtoul(rest, NULL, 0), NULL));
}

static void op_pollfd(char *rest)
{
	struct pollfd one = {.fd = file(word(&rest)), .events = POLLIN | POLLPRI | POLLERR};
	int ready = poll(&one, 1, 100);

	printf("= poll: %d revents=%#x\n", ready, (unsigned)one.revents);
}

static void op_mmap(char *rest)
{
	int fd = open(in_tree("user_events_status"), O_RDONLY);
	void *page = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);

	(void)rest;
	if (page == MAP_FAILED)
		printf("= mmap: %s\n", errno_text());
	else
		puts("= mmap: ok");
	close(fd);
}

static void op_page(char *rest)
{
	(void)rest;
	puts("= nopage");
}

static void op_ls(char *rest)
{
	struct dirent **entries;
	char folder[4096], path[8192];
	int n;

	snprintf(folder, sizeof(folder), "%s", in_tree(word(&rest)));
	n = scandir(folder, &entries, NULL, alphasort);
	if (n < 0) {
		printf("= opendir: %s\n", errno_text());
		return;
	}
	for (int i = 0; i < n; i++) {
		struct stat st;

		snprintf(path, sizeof(path), "%s/%s", folder, entries[i]->d_name);
		if (entries[i]->d_name[0] != '.' && !lstat(path, &st))
			printf("| %06o %u:%u %s%s\n", st.st_mode, st.st_uid, st.st_gid, entries[i]->d_name,
			       S_ISDIR(st.st_mode) ? "/" : "");
		free(entries[i]);
	}
	free(entries);
	puts("= ok");
}

static void op_mkdir(char *rest)
{
	if (mkdir(in_tree(word(&rest)), 0755) < 0)
		printf("= mkdir: %s\n", errno_text());
	else
		puts("= mkdir: ok");
}

static void op_rmdir(char *rest)
{
	if (rmdir(in_tree(word(&rest))) < 0)
		printf("= rmdir: %s\n", errno_text());
	else
		puts("= rmdir: ok");
}

/* A shell command, with TREE in place of the kernel's mount point. */
static void op_sh(char *rest)
{
	char command[8192] = "", *found;
	size_t n = 0;
	FILE *out;

	while ((found = strstr(rest, TRACING)) && n < sizeof(command)) {
		n += (size_t)snprintf(command + n, sizeof(command) - n, "%.*s%s", (int)(found - rest), rest, tree);
		rest = found + strlen(TRACING);
	}
	snprintf(command + n, sizeof(command) - n, "%s", rest);
	fflush(stdout);
	out = popen(command, "r");
	n = out ? fread(content, 1, MAX_CONTENT, out) : 0;
	show(content, n);
	printf("= exit %d\n", out ? WEXITSTATUS(pclose(out)) : -1);
}

static void op_perf(char *rest)
{
	char line[4096];

	if (!ask || !answer) {
		puts("= not on the wire");
		return;
	}
	fprintf(ask, "perf %s\n", rest);
	fflush(ask);
	while (fgets(line, sizeof(line), answer) && strcmp(line, ".\n"))
		fputs(line, stdout);
}

static void op_comm(char *rest)
{
	ok_or_errno("comm", prctl(PR_SET_NAME, word(&rest)));
}

static void op_cpu(char *rest)
{
	cpu_set_t one;

	CPU_ZERO(&one);
	CPU_SET((size_t)atoi(word(&rest)), &one);
	ok_or_errno("cpu", sched_setaffinity(0, sizeof(one), &one));
}

static void op_sleep(char *rest)
{
	usleep((useconds_t)atoi(rest) * 100); /* the kernel's workers needed longer */
	puts("= ok");
}

static const struct {
	const char *name;
	void (*play)(char *rest);
} OPERATIONS[] = {
	{"cat", op_cat},         {"close", op_close},   {"comm", op_comm},         {"cpu", op_cpu},
	{"del", op_del},         {"fopen", op_fopen},   {"fread", op_fread},       {"ioctl", op_ioctl},
	{"ls", op_ls},           {"lseek", op_lseek},   {"mkdir", op_mkdir},       {"mmap", op_mmap},
	{"open", op_open},       {"page", op_page},     {"perf", op_perf},         {"pollfd", op_pollfd},
	{"pwrite", op_pwrite},   {"reg", op_reg},       {"rawwrite", op_rawwrite}, {"rmdir", op_rmdir},
	{"sh", op_sh},           {"sleep", op_sleep},   {"state", op_state},       {"unregall", op_unregall},
	{"w", op_w},             {"wa", op_wa},         {"wn", op_wn},             {"write", op_write},
	{"write1", op_write1},   {"writebad", op_writebad}, {"wv", op_wv},
};

static void play_line(char *line)
{
	char *rest, *name;

	if (!*line || *line == '#') {
		puts(line);
		return;
	}
	quiet = !strncmp(line, "q ", 2);
	rest = line + 2 * quiet;
	if (!quiet)
		printf("> %s\n", line);
	name = word(&rest);
	for (size_t i = 0; i < sizeof(OPERATIONS) / sizeof(*OPERATIONS); i++)
		if (!strcmp(OPERATIONS[i].name, name)) {
			OPERATIONS[i].play(rest);
			return;
		}
	printf("= UNKNOWN OP %s\n", name);
}

/* A child plays the lines from `fork` to its `endfork`. */
static void play(char **lines, char **end)
{
	for (; lines < end; lines++) {
		char **last = lines + 1;
		int status = 0;
		pid_t child;

		if (strcmp(*lines, "fork")) {
			play_line(*lines);
			fflush(stdout);
			continue;
		}
		puts("> fork");
		while (last < end && strcmp(*last, "endfork"))
			last++;
		fflush(stdout);
		child = fork();
		if (!child) {
			play(lines + 1, last);
			_exit(0);
		}
		waitpid(child, &status, 0);
		printf("> endfork\n= child exit %d\n", WEXITSTATUS(status));
		lines = last;
	}
}

int main(int argc, char **argv)
{
	FILE *script = argc > 2 ? fopen(argv[1], "r") : NULL;
	static char *lines[100000];
	char *line = NULL;
	size_t room = 0, count = 0;

	if (!script) {
		fputs("player SCRIPT TREE [ASK ANSWER]\n", stderr);
		return 2;
	}
	tree = argv[2];
	if (argc > 4) {
		ask = fdopen(atoi(argv[3]), "w");
		answer = fdopen(atoi(argv[4]), "r");
	}
	prctl(PR_SET_NAME, "drv");
	while (count < sizeof(lines) / sizeof(*lines) && getline(&line, &room, script) > 0) {
		line[strcspn(line, "\n")] = '\0';
		lines[count++] = strdup(line);
	}
	free(line);
	fclose(script);
	play(lines, lines + count);
	return 0;
}
