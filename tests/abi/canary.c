/* canary TREE CHILDREN TOGGLES - in no memory anything changes but the bits, and no bit is wrong for long.
 *
 * A plot is three pages at one address in every process: a page of a pattern between two of the same
 * pattern that nobody may read or write. Words lie at the start of the middle page, at its end and in
 * between, and hold the pattern, too. The keeper registers bits in them. Its children are forked while the
 * events go on and off; each leaves in its own way:
 *
 *	looks      compares its plot with the pattern and exits
 *	killed     is killed at some moment
 *	stays      until the events rest: then its bits must become right
 *	leaves     takes one word out: that bit stays clear from then on
 *	execs      becomes a stranger
 *
 * A stranger lays out its plot at the same address without registering: its bits must not change either.
 * Strangers that were never forked from the keeper come from a process that was forked before it registered.
 *
 * Prints a line for each process that found something wrong, and figures at the end. Status 0: nothing wrong.
 */
#define _GNU_SOURCE
#include "abi.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>

#define PLOT ((unsigned char *)0x210000000000UL)
#define MIDDLE (PLOT + PAGE)
#define WORDS 4
#define ROUNDS 20
#define AT_ONCE 8          /* children that live at a time, besides staying ones */
#define STAYING 8          /* of each round */
#define EXECING 64         /* of each round, at most */
#define REST_MS 100
#define PATIENCE_MS 100000 /* how long a machine may be busy; how long it took is printed */

static const struct {
	unsigned offset, size, bit;
} words[WORDS] = {{0, 4, 0}, {PAGE - 8, 8, 63}, {2048, 8, 17}, {1028, 4, 31}};
static const char *const events[] = {"canary_a u32 n", "canary_b"};

/* Shared by all, written by the keeper. */
static struct board {
	atomic_uint changes;     /* odd while `echo` runs */
	atomic_int is_on;        /* what the bits ought to be, */
	_Atomic double since_ms; /* from then on; */
	atomic_int is_resting;   /* for long enough that they must be */
	atomic_int is_over;
	/* Written by the process that noticed. */
	_Atomic double longest_wrong_ms;
	atomic_int wrong_bits, touched, strangers;
} *board;

static unsigned char pattern(size_t i)
{
	return (unsigned char)((i * 0x9e3779b1u + 0x51u) >> 7);
}

static uint64_t pattern_word(unsigned w)
{
	uint64_t value = 0;

	for (unsigned i = 0; i < words[w].size; i++)
		value |= (uint64_t)pattern(PAGE + words[w].offset + i) << 8 * i;
	return value & ~(1ULL << words[w].bit);
}

static volatile void *word_at(unsigned w)
{
	return MIDDLE + words[w].offset;
}

static int bit_of(unsigned w)
{
	return (int)(bits_of(word_at(w), words[w].size) >> words[w].bit & 1);
}

/* The pattern, with the bits clear. */
static int lay_out(void)
{
	const int anonymous = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;

	if (mmap(PLOT, 3 * PAGE, PROT_READ | PROT_WRITE, anonymous, -1, 0) != PLOT)
		return -1;
	for (size_t i = 0; i < 3 * PAGE; i++)
		PLOT[i] = pattern(i);
	for (unsigned w = 0; w < WORDS; w++) {
		uint64_t value = pattern_word(w);

		memcpy((void *)word_at(w), &value, words[w].size);
	}
	if (mprotect(PLOT, PAGE, PROT_NONE) || mprotect(MIDDLE + PAGE, PAGE, PROT_NONE))
		return -1;
	return 0;
}

static void tell(const char *who, const char *what, size_t where, unsigned found)
{
	char line[200];
	int n = snprintf(line, sizeof(line), "%s %d: %s at %#zx: %#x\n", who, getpid(), what, where, found);

	if (write(1, line, (size_t)n) < 0)
		return;
}

/* Compares the whole plot; of the words all but the bits in `bits`. The guards are looked at last: they stay
 * readable then. Returns 0 or 1. */
static int look(const char *who, int with_bits)
{
	unsigned char expected[PAGE];
	int wrong = 0;

	for (size_t i = 0; i < PAGE; i++)
		expected[i] = pattern(PAGE + i);
	for (unsigned w = 0; w < WORDS; w++) {
		uint64_t value = pattern_word(w);

		memcpy(expected + words[w].offset, &value, words[w].size);
	}
	for (size_t i = 0; i < PAGE; i++) {
		unsigned char found = ((volatile unsigned char *)MIDDLE)[i];

		for (unsigned w = 0; with_bits && w < WORDS; w++)
			if (i == words[w].offset + words[w].bit / 8)
				found &= (unsigned char)~(1u << words[w].bit % 8);
		if (found != expected[i]) {
			tell(who, "touched", PAGE + i, found);
			wrong = 1;
		}
	}
	mprotect(PLOT, PAGE, PROT_READ);
	mprotect(MIDDLE + PAGE, PAGE, PROT_READ);
	for (size_t i = 0; i < PAGE; i++)
		if (PLOT[i] != pattern(i) || PLOT[2 * PAGE + i] != pattern(2 * PAGE + i)) {
			tell(who, "guard touched", i, PLOT[i]);
			wrong = 1;
		}
	if (wrong)
		board->touched++;
	return wrong;
}

/* While events rest: bits that do not become as they must be. */
static int judge_bits(const char *who)
{
	double until = now_ms() + PATIENCE_MS;
	int wrong = 0;

	for (unsigned w = 0; w < WORDS; w++) {
		while (bit_of(w) != board->is_on && now_ms() < until)
			sleep_ms(1);
		if (bit_of(w) != board->is_on) {
			tell(who, "wrong bit in word", w, (unsigned)bit_of(w));
			wrong = 1;
		}
	}
	if (wrong)
		board->wrong_bits++;
	return wrong;
}

static int all_bits_are(int on)
{
	for (unsigned w = 0; w < WORDS; w++)
		if (bit_of(w) != on)
			return 0;
	return 1;
}

static void wait_for_rest(void)
{
	while (!board->is_resting && !board->is_over)
		sleep_ms(2);
}

/* Notes for how long after `echo` a bit was still wrong, until events rest and none is. */
static void watch_until_rest(void)
{
	double until = now_ms() + 6 * PATIENCE_MS;

	while ((!board->is_resting || !all_bits_are(board->is_on)) && !board->is_over && now_ms() < until) {
		unsigned changes = board->changes;
		double since = board->since_ms, longest = board->longest_wrong_ms, wrong;

		wrong = changes % 2 == 0 && !all_bits_are(board->is_on) ? now_ms() - since : 0;
		while (changes == board->changes && wrong > longest &&
		       !atomic_compare_exchange_weak(&board->longest_wrong_ms, &longest, wrong))
			;
		sleep_ms(1);
	}
}

static int stranger(void)
{
	board->strangers++;
	if (lay_out())
		return 2;
	wait_for_rest();
	return look("stranger", 0);
}

enum fate { LOOKS, KILLED, LEAVES, EXECS, STAYS, FATES };

/* The work of a child; returns its status. */
static int live(enum fate fate, int fd, unsigned number, char **argv)
{
	int wrong = 0;

	switch (fate) {
	case KILLED:
		for (;;)
			pause();
	case LOOKS:
		sleep_ms(number % 4);
		return look("child", 1);
	case LEAVES: {
		unsigned w = number % WORDS;

		if (unreg_word(fd, word_at(w), words[w].bit)) {
			tell("child", "cannot unregister", w, (unsigned)errno);
			return 2;
		}
		for (int i = 0; i < 5; i++) {
			if (bit_of(w)) {
				tell("child", "set after it was taken out: word", w, 1);
				board->wrong_bits++;
				wrong = 1;
			}
			sleep_ms(1);
		}
		return wrong | look("child", 1);
	}
	case EXECS:
		execl("/proc/self/exe", argv[0], argv[1], "stranger", (char *)NULL);
		return 2;
	default:
		watch_until_rest();
		return judge_bits("child") | look("child", 1);
	}
}

static long toggles_of_round;
static double *latencies; /* ms from the end of `echo` until the keeper's own bits are right */
static long latency_count;
static double echo_ms;

/* One round of toggles, from a thread of the keeper. */
static void *toggle(void *failed)
{
	for (long i = 0; i < toggles_of_round; i++) {
		int on = !board->is_on;
		double before = now_ms(), returned;

		board->changes++;
		if (enable("canary_a", on) || enable("canary_b", on)) {
			tell("keeper", "cannot toggle", (size_t)i, (unsigned)errno);
			return failed;
		}
		returned = now_ms();
		echo_ms += returned - before;
		board->is_on = on;
		board->since_ms = returned;
		board->changes++;
		while (!all_bits_are(on)) {
			if (now_ms() - returned > PATIENCE_MS) {
				tell("keeper", "wrong bits for too long, toggle", (size_t)i, (unsigned)on);
				return failed;
			}
			sched_yield();
		}
		latencies[latency_count++] = now_ms() - returned;
		sleep_ms(1);
	}
	return NULL;
}

static int compare(const void *a, const void *b)
{
	return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b);
}

static int forked, bad_children;

static void reap(pid_t *slot)
{
	int status;

	if (*slot > 0 && waitpid(*slot, &status, 0) == *slot) {
		if (WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status) != SIGKILL) {
			tell("keeper", "bad status of child", (size_t)*slot, (unsigned)status);
			bad_children++;
		}
		*slot = 0;
	}
}

static void play_round(long children, int fd, unsigned round, char **argv, int *failed)
{
	pid_t living[AT_ONCE] = {0}, staying[STAYING] = {0}, exec_ed[EXECING] = {0};
	unsigned execs = 0;
	pthread_t thread;
	void *result = NULL;
	long left = children;

	board->is_resting = 0;
	pthread_create(&thread, NULL, toggle, failed);
	for (unsigned number = round; left > 0; number++) {
		enum fate fate = left <= STAYING ? STAYS : (enum fate)(number % STAYS);
		pid_t *slot = fate == STAYS ? &staying[left - 1]
			      : fate == EXECS ? &exec_ed[execs++ % EXECING]
					      : &living[number % AT_ONCE];
		pid_t child;

		reap(slot);
		child = fork();
		if (!child)
			_exit(live(fate, fd, number, argv));
		if (child < 0) {
			tell("keeper", "cannot fork", (size_t)left, (unsigned)errno);
			bad_children++;
			break;
		}
		forked++;
		left--;
		*slot = child;
		if (fate == KILLED) {
			sleep_ms(number % 5);
			kill(child, SIGKILL);
		}
	}
	pthread_join(thread, &result);
	*failed |= result != NULL;
	sleep_ms(REST_MS);
	board->is_resting = 1;
	*failed |= judge_bits("keeper");
	for (unsigned i = 0; i < AT_ONCE; i++)
		reap(&living[i]);
	for (unsigned i = 0; i < STAYING; i++)
		reap(&staying[i]);
	for (unsigned i = 0; i < EXECING; i++)
		reap(&exec_ed[i]);
}

/* Strangers with plots at the same address, one after the other, until all is over. */
static int launcher(char **argv)
{
	while (!board->is_over) {
		int status;
		pid_t child = fork();

		if (!child) {
			execl("/proc/self/exe", argv[0], argv[1], "stranger", (char *)NULL);
			_exit(2);
		}
		if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status))
			return 1;
		sleep_ms(10);
	}
	return 0;
}

static int map_board(int fd)
{
	board = mmap(NULL, sizeof(*board), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	return board == MAP_FAILED ? -1 : 0;
}

int main(int argc, char **argv)
{
	long children, toggles, indexes[2];
	int shared, fd, failed = 0, status = 0;
	pid_t other;

	if (argc == 3 && !strcmp(argv[2], "stranger")) /* descriptor 100 is the board */
		return map_board(100) ? 2 : stranger();
	if (argc < 4) {
		fputs("canary TREE CHILDREN TOGGLES\n", stderr);
		return 2;
	}
	tree = argv[1];
	children = atol(argv[2]);
	toggles = atol(argv[3]);
	latencies = calloc((size_t)toggles + ROUNDS, sizeof(*latencies));
	shared = memfd_create("board", 0);
	if (ftruncate(shared, sizeof(*board)) || dup2(shared, 100) != 100 || map_board(100) || lay_out())
		return 2;
	other = fork();
	if (!other)
		_exit(launcher(argv));
	fd = open_data();
	for (unsigned w = 0; w < WORDS; w++) {
		indexes[w % 2] = reg_event(fd, events[w % 2], word_at(w), words[w].size, words[w].bit);
		if (indexes[w % 2] != w % 2) {
			perror("cannot register");
			failed = 1;
		}
	}
	toggles_of_round = toggles / ROUNDS;
	for (unsigned round = 0; round < ROUNDS && !failed; round++)
		play_round(children / ROUNDS, fd, round, argv, &failed);
	board->is_resting = 1;
	board->is_over = 1;
	if (waitpid(other, &status, 0) == other && status)
		failed = 1;
	failed |= look("keeper", 1);
	for (unsigned w = 0; w < WORDS; w++)
		if (unreg_word(fd, word_at(w), words[w].bit))
			failed = 1;
	enable("canary_a", 0);
	enable("canary_b", 0);
	close(fd);
	qsort(latencies, (size_t)latency_count, sizeof(*latencies), compare);
	if (latency_count)
		printf("changes %ld\necho_ms %.3f\nlatency_ms %.3f %.3f %.3f %.3f\n", 2 * latency_count,
		       echo_ms / (double)latency_count / 2, latencies[latency_count / 2],
		       latencies[latency_count * 9 / 10], latencies[latency_count * 99 / 100],
		       latencies[latency_count - 1]);
	printf("longest_wrong_ms %.1f\n", board->longest_wrong_ms);
	printf("children %d\nstrangers %d\nwrong_bits %d\ntouched %d\nbad_children %d\n", forked,
	       board->strangers, board->wrong_bits, board->touched, bad_children);
	return failed || bad_children || board->touched || board->wrong_bits;
}
