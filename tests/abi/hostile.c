/* hostile TREE [NAME] - wrong structures, pointers and memory: the kernel's errno, and no other effect.
 *
 * The order of the checks is that of user_events_ioctl_reg(): of two mistakes the earlier one is answered.
 */
#define _GNU_SOURCE
#include "abi.h"

#include <pthread.h>
#include <sys/prctl.h>

#ifndef MAP_HUGE_2MB
#define MAP_HUGE_2MB (21 << 26)
#endif

static int fd;

static unsigned char *pages(int protection)
{
	return mmap(NULL, PAGE, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

/* The end of a page behind which nothing can be read. */
static unsigned char *edge(void)
{
	unsigned char *both = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	mprotect(both + PAGE, PAGE, PROT_NONE);
	return both + PAGE;
}

static int reg_at(const void *reg)
{
	return ioctl(fd, DIAG_IOCSREG, reg);
}

static void reg_pointers(void)
{
	struct user_reg reg = reg_of("hp_event u32 a", &word, 4, 0);
	unsigned char *end = edge();

	fd = open_data();
	FAILS(EFAULT, reg_at(NULL));
	FAILS(EFAULT, reg_at((void *)8));
	FAILS(EFAULT, reg_at(pages(PROT_NONE)));
	FAILS(EFAULT, reg_at((void *)0xffff888000000000));
	FAILS(EFAULT, reg_at(end));
	memcpy(end - 16, &reg, 16); /* the size is there, the rest is not */
	FAILS(EFAULT, reg_at(end - 16));
	reg.size = PAGE;
	memcpy(end - sizeof(reg), &reg, sizeof(reg));
	FAILS(EFAULT, reg_at(end - sizeof(reg)));
	reg.size = sizeof(reg); /* up to the last byte */
	memcpy(end - sizeof(reg), &reg, sizeof(reg));
	CHECK(reg_at(end - sizeof(reg)) == 0);
	memcpy(&reg, end - sizeof(reg), sizeof(reg));
	CHECK(reg.write_index == 0 && reg.size == sizeof(reg));
	CHECK(unreg_word(fd, &word, 0) == 0);
	close(fd);
}

static void reg_sizes(void)
{
	static union {
		struct user_reg reg;
		unsigned char bytes[2 * PAGE];
	} big;

	fd = open_data();
	big.reg = reg_of("hs_event", &word, 4, 0);
	for (unsigned size = 0; size < sizeof(big.reg); size++) {
		big.reg.size = size;
		FAILS(EINVAL, reg_at(&big));
	}
	big.reg.size = PAGE + 1;
	FAILS(E2BIG, reg_at(&big));
	big.reg.size = ~0U;
	FAILS(E2BIG, reg_at(&big));
	big.reg.size = PAGE;
	big.bytes[PAGE - 1] = 1;
	FAILS(E2BIG, reg_at(&big));
	big.reg.size = PAGE - 1;
	CHECK(reg_at(&big) == 0 && big.reg.write_index == 0);
	CHECK(unreg_word(fd, &word, 0) == 0);
	big.reg.size = sizeof(big.reg) + 1;
	big.bytes[sizeof(big.reg)] = 1;
	big.reg.flags = 4; /* comes later */
	FAILS(E2BIG, reg_at(&big));
	CHECK(word == 0);
	close(fd);
}

static void reg_members(void)
{
	struct user_reg reg = reg_of("hm_event", &word, 4, 0);
	static const uint64_t wrong[] = {0xffff800000000000, 0xffffffffff600000, ~7ULL, 1ULL << 63};

	fd = open_data();
	for (unsigned bit = 2; bit < 16; bit++) {
		reg.flags = (__u16)(1U << bit);
		FAILS(EINVAL, reg_at(&reg));
	}
	reg = reg_of("hm_event", (char *)&word + 2, 4, 0);
	FAILS(EINVAL, reg_at(&reg));
	reg = reg_of("hm_event", (void *)0x10000004, 8, 0);
	FAILS(EINVAL, reg_at(&reg));
	for (unsigned i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) {
		reg = reg_of("hm_event", (void *)wrong[i], 8, 63);
		FAILS(EFAULT, reg_at(&reg));
	}
	/* Of two mistakes the first. */
	reg = reg_of(NULL, (void *)wrong[0], 4, 32);
	FAILS(EINVAL, reg_at(&reg));
	reg = reg_of(NULL, (void *)wrong[0], 4, 31);
	FAILS(EFAULT, reg_at(&reg));
	CHECK(reg_event(fd, "hm_event", &word, 4, 0) == 0);
	reg = reg_of(NULL, &word, 4, 0);
	FAILS(EADDRINUSE, reg_at(&reg));
	reg = reg_of(NULL, &word, 4, 1);
	FAILS(EFAULT, reg_at(&reg));
	CHECK(unreg_word(fd, &word, 0) == 0 && word == 0);
	close(fd);
}

static void reg_strings(void)
{
	static char text[1024];
	unsigned char *end = edge();
	struct user_reg reg;

	fd = open_data();
	FAILS(EFAULT, reg_event(fd, NULL, &word, 4, 0));
	FAILS(EFAULT, reg_event(fd, (char *)pages(PROT_NONE), &word, 4, 0));
	memset(end - 100, 'x', 100); /* no NUL before the memory ends */
	FAILS(EFAULT, reg_event(fd, (char *)end - 100, &word, 4, 0));
	memcpy(end - 9, "ht_event", 9);
	CHECK(reg_event(fd, (char *)end - 9, &word, 4, 0) == 0);
	CHECK(unreg_word(fd, &word, 0) == 0);
	memset(text, ' ', sizeof(text));
	memcpy(text, "ht_event", 8); /* spaces only: no fields */
	FAILS(EINVAL, reg_event(fd, text, &word, 4, 0));
	memset(text, 'n', 512);
	text[512] = '\0';
	FAILS(EINVAL, reg_event(fd, text, &word, 4, 0));
	FAILS(EINVAL, reg_event(fd, "ht_event:", &word, 4, 0));
	FAILS(EINVAL, reg_event(fd, "ht_event:flag u32 a", &word, 4, 0));
	FAILS(EADDRINUSE, reg_event(fd, "ht_event nonsense", &word, 4, 0));
	FAILS(EINVAL, reg_event(fd, "ht_none nonsense", &word, 4, 0));
	reg = reg_of("ht_none: u32 a", &word, 4, 0);
	reg.flags = USER_EVENT_REG_PERSIST;
	FAILS(EINVAL, reg_at(&reg));
	CHECK(word == 0);
	close(fd);
}

/* The word cannot be written: ENOMEM, and the file holds the event none the less. */
static void word_not_writable(void)
{
	unsigned char *readable = pages(PROT_READ), *none = pages(PROT_READ | PROT_WRITE), *gone = pages(PROT_READ);
	unsigned char *code = pages(PROT_READ | PROT_EXEC);
	static const uint32_t constant = 4711;

	memset(none, 0x5a, PAGE);
	mprotect(none, PAGE, PROT_NONE);
	munmap(gone, PAGE);
	fd = open_data();
	FAILS(ENOMEM, reg_event(fd, "hw_event", readable, 4, 0));
	FAILS(ENOMEM, reg_event(fd, "hw_event", none + 8, 8, 63));
	FAILS(ENOMEM, reg_event(fd, "hw_event", gone, 4, 0));
	FAILS(ENOMEM, reg_event(fd, "hw_event", code, 4, 0));
	FAILS(ENOMEM, reg_event(fd, "hw_event", NULL, 4, 0));
	FAILS(ENOMEM, reg_event(fd, "hw_event", (void *)&constant, 4, 0));
	CHECK(enable("hw_event", 1) == 0); /* it is there, */
	FAILS(ENOMEM, reg_event(fd, "hw_event", readable, 4, 0));
	FAILS(ENOENT, unreg_word(fd, readable, 0)); /* without these words, */
	CHECK(reg_event(fd, "hw_event", &word, 4, 0) == 0); /* with the first index */
	CHECK(word == 1 && unreg_word(fd, &word, 0) == 0 && word == 0);
	CHECK(enable("hw_event", 0) == 0);
	mprotect(none, PAGE, PROT_READ);
	for (unsigned i = 0; i < PAGE; i++)
		CHECK(none[i] == 0x5a && readable[i] == 0 && code[i] == 0 && constant == 4711);
	close(fd);
}

/* A word whose memory changes after it was registered. */
static void word_taken_away(void)
{
	const int both = PROT_READ | PROT_WRITE;
	uint32_t *locked = (uint32_t *)pages(both), *gone = (uint32_t *)pages(both);
	uint32_t *moved = (uint32_t *)pages(both), *other;
	struct user_unreg unreg = {.size = sizeof(unreg), .disable_addr = (uintptr_t)locked};

	fd = open_data();
	CHECK(reg_event(fd, "ha_event", locked, 4, 0) == 0);
	CHECK(reg_event(fd, "ha_event", gone, 4, 0) == 0);
	CHECK(reg_event(fd, "ha_event", moved, 4, 0) == 0);
	CHECK(reg_event(fd, "ha_event", &word, 4, 0) == 0);
	mprotect(locked, PAGE, PROT_READ);
	munmap(gone, PAGE);
	other = mremap(moved, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, (char *)moved + (1UL << 32));
	CHECK(other != MAP_FAILED);
	CHECK(enable("ha_event", 1) == 0 && EVENTUALLY(word == 1));
	sleep_ms(150);
	CHECK(*locked == 0 && *other == 0);
	CHECK(enable("ha_event", 0) == 0 && EVENTUALLY(word == 0));
	mprotect(locked, PAGE, PROT_READ | PROT_WRITE);
	CHECK(enable("ha_event", 1) == 0 && EVENTUALLY(word == 1)); /* the next change reaches it again */
	CHECK(EVENTUALLY(*locked == 1) && *other == 0);
	mprotect(locked, PAGE, PROT_READ);
	FAILS(EFAULT, ioctl(fd, DIAG_IOCSUNREG, &unreg)); /* out, though its bit stays */
	FAILS(ENOENT, ioctl(fd, DIAG_IOCSUNREG, &unreg));
	CHECK(*locked == 1);
	FAILS(EFAULT, unreg_word(fd, gone, 0));
	FAILS(EFAULT, unreg_word(fd, moved, 0));
	CHECK(unreg_word(fd, &word, 0) == 0 && enable("ha_event", 0) == 0);
	close(fd);
}

/* Memory of each kind that can be written. */
static void word_in(void *at, const char *event)
{
	const char *whole = fact;
	uint32_t *here = at;

	fact = event; /* for what fails here; the whole has failed then, too */
	CHECK(at != MAP_FAILED);
	here[0] = here[2] = 0x5a5a5a5a;
	here[1] = 0;
	CHECK(reg_event(fd, event, here + 1, 4, 31) >= 0);
	CHECK(enable(event, 1) == 0 && EVENTUALLY(here[1] == 1U << 31));
	CHECK(enable(event, 0) == 0 && EVENTUALLY(here[1] == 0));
	CHECK(unreg_word(fd, here + 1, 31) == 0);
	CHECK(here[0] == 0x5a5a5a5a && here[2] == 0x5a5a5a5a);
	fact = whole;
}

static void words_anywhere(void)
{
	static const int both = PROT_READ | PROT_WRITE;
	const int huge = MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | MAP_HUGE_2MB;
	unsigned char on_stack[64] __attribute__((aligned(8)));
	unsigned char copy[16];
	int shared = memfd_create("words", 0);
	void *memory;

	fd = open_data();
	CHECK(ftruncate(shared, (off_t)PAGE) == 0);
	word_in(on_stack, "hk_stack");
	word_in(malloc(64), "hk_heap");
	word_in(pages(both), "hk_page"); /* never touched before */
	word_in(mmap(NULL, PAGE, both, MAP_SHARED | MAP_ANONYMOUS, -1, 0), "hk_shared");
	word_in(mmap(NULL, PAGE, both, MAP_SHARED, shared, 0), "hk_memfd");
	CHECK(pread(shared, copy, 16, 0) == 16);
	word_in(mmap(NULL, PAGE, both, MAP_PRIVATE, shared, 0), "hk_private");
	memory = mmap(NULL, 2UL << 20, both, huge, -1, 0);
	if (memory != MAP_FAILED) /* the machine has huge pages */
		word_in(memory, "hk_huge");
	memory = mmap(NULL, 4UL << 20, both, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	memory = (void *)(((uintptr_t)memory + (2UL << 20) - 1) & ~((2UL << 20) - 1));
	madvise(memory, 2UL << 20, MADV_HUGEPAGE);
	word_in(memory, "hk_folded");
	close(shared);
	close(fd);
}

/* Two mappings of one page are two addresses; a private copy is not the file. */
static void words_of_a_file(void)
{
	int file = memfd_create("words", 0);
	uint32_t *one, *copy, in_file = 1;

	CHECK(ftruncate(file, (off_t)PAGE) == 0);
	one = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	copy = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
	fd = open_data();
	CHECK(reg_event(fd, "hf_event", copy, 4, 3) == 0);
	CHECK(reg_event(fd, "hf_event", one + 1, 4, 3) == 0);
	CHECK(enable("hf_event", 1) == 0 && EVENTUALLY(one[1] == 8 && copy[0] == 8));
	CHECK(pread(file, &in_file, 4, 0) == 4 && in_file == 0);
	CHECK(unreg_word(fd, copy, 3) == 0 && unreg_word(fd, one + 1, 3) == 0);
	CHECK(copy[0] == 0 && one[1] == 0 && enable("hf_event", 0) == 0);
	close(file);
	close(fd);
}

/* Memory of a device is nobody's to write: here the first megabyte's firmware, where root may map it. */
static void word_of_a_device(void)
{
	int device = open("/dev/mem", O_RDWR);
	uint32_t *memory = MAP_FAILED, before;

	fd = open_data();
	if (device >= 0)
		memory = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, device, 0xf0000);
	if (memory != MAP_FAILED) {
		before = memory[0];
		FAILS(ENOMEM, reg_event(fd, "hd_event", memory, 4, before & 1 ? 1 : 0));
		CHECK(memory[0] == before);
		munmap(memory, PAGE);
	}
	if (device >= 0)
		close(device);
	close(fd);
}

static void unreg_mistakes(void)
{
	static union {
		struct user_unreg unreg;
		unsigned char bytes[2 * PAGE];
	} big;
	unsigned char *end = edge();

	fd = open_data();
	FAILS(ENOENT, unreg_word(fd, &word, 0));
	CHECK(reg_event(fd, "hu_event", &word, 4, 2) == 0);
	big.unreg = (struct user_unreg){.size = 15, .disable_bit = 2, .disable_addr = (uintptr_t)&word};
	FAILS(EINVAL, ioctl(fd, DIAG_IOCSUNREG, &big));
	big.unreg.size = PAGE + 1;
	FAILS(E2BIG, ioctl(fd, DIAG_IOCSUNREG, &big));
	big.unreg.size = 17;
	big.bytes[16] = 1;
	FAILS(E2BIG, ioctl(fd, DIAG_IOCSUNREG, &big));
	big.unreg.size = 16;
	big.unreg.__reserved = 1;
	FAILS(EINVAL, ioctl(fd, DIAG_IOCSUNREG, &big));
	big.unreg.__reserved = 0;
	big.unreg.__reserved2 = 1;
	FAILS(EINVAL, ioctl(fd, DIAG_IOCSUNREG, &big));
	big.unreg.__reserved2 = 0;
	FAILS(EFAULT, ioctl(fd, DIAG_IOCSUNREG, NULL));
	FAILS(EFAULT, ioctl(fd, DIAG_IOCSUNREG, end));
	memcpy(end - 12, &big, 12);
	FAILS(EFAULT, ioctl(fd, DIAG_IOCSUNREG, end - 12));
	FAILS(ENOENT, unreg_word(fd, &word, 3));
	FAILS(ENOENT, unreg_word(fd, &word + 1, 2));
	memcpy(end - 16, &big, 16);
	CHECK(ioctl(fd, DIAG_IOCSUNREG, end - 16) == 0);
	close(fd);
}

static void del_mistakes(void)
{
	static char text[600];
	unsigned char *end = edge();

	fd = open_data();
	FAILS(EFAULT, ioctl(fd, DIAG_IOCSDEL, NULL));
	FAILS(EFAULT, ioctl(fd, DIAG_IOCSDEL, end));
	memset(end - 10, 'x', 10);
	FAILS(EFAULT, ioctl(fd, DIAG_IOCSDEL, end - 10));
	memset(text, 'x', 512);
	FAILS(EINVAL, ioctl(fd, DIAG_IOCSDEL, text));
	FAILS(ENOENT, ioctl(fd, DIAG_IOCSDEL, "nothing_of_this_name"));
	FAILS(ENOENT, ioctl(fd, DIAG_IOCSDEL, "nothing/here"));
	close(fd);
}

static void write_mistakes(void)
{
	unsigned char *none = pages(PROT_NONE);
	struct iovec parts[3] = {{"\0\0\0", 4}, {none, 4}, {"\1\2\3", 4}};
	volatile int negative = -1, many = 1025;
	long index;

	fd = open_data();
	index = reg_event(fd, "hx_event u32 a", &word, 4, 0);
	CHECK(index == 0 && enable("hx_event", 1) == 0 && EVENTUALLY(word == 1));
	FAILS(EFAULT, write(fd, none, 8));
	FAILS(EFAULT, writev(fd, (struct iovec *)none, 2));
	FAILS(EINVAL, writev(fd, parts, negative));
	FAILS(EINVAL, writev(fd, parts, many));
	FAILS(EINVAL, writev(fd, parts, 1));
	CHECK(writev(fd, parts, 0) == 0);
	parts[1].iov_len = 0; /* of no bytes: nobody looks where */
	CHECK(writev(fd, parts, 3) == 8);
	parts[2].iov_len = (size_t)-1;
	FAILS(EINVAL, writev(fd, parts, 3));
	CHECK(write(fd, "\0\0\0\0\1\0\0\0\2\0\0\0", 12) == 12);
	CHECK(enable("hx_event", 0) == 0 && unreg_word(fd, &word, 0) == 0);
	close(fd);
}

/* Of a record that can be read in part nothing is taken. */
static void write_unreadable(void)
{
	unsigned char *none = pages(PROT_NONE);
	struct iovec parts[] = {{"\0\0\0", 4}, {"\1\2\3", 4}, {none, 4}, {"\4\5\6", 4}};

	fd = open_data();
	CHECK(reg_event(fd, "hy_event u32 a", &word, 4, 0) == 0);
	FAILS(EBADF, writev(fd, parts, 4)); /* nobody listens: nobody looks */
	CHECK(enable("hy_event", 1) == 0 && EVENTUALLY(word == 1));
	FAILS(EFAULT, writev(fd, parts, 4));
	FAILS(EFAULT, writev(fd, parts, 3));
	FAILS(EFAULT, write_record(fd, 0, NULL, 8));
	CHECK(!strstr(text_of("trace"), "hy_event"));
	CHECK(enable("hy_event", 0) == 0 && unreg_word(fd, &word, 0) == 0);
	close(fd);
}

/* The structure or the string changes while the call reads it: some answer, and no harm. */
static struct user_reg racing;
static atomic_int is_racing;

static void *race(void *unused)
{
	for (unsigned i = 0; is_racing; i++) {
		*(volatile __u32 *)&racing.size = i & 1 ? sizeof(racing) : i & 2 ? ~0U : 0;
		*(volatile __u64 *)&racing.name_args = i & 4 ? 0 : (uintptr_t)"hr_event u32 a";
	}
	return unused;
}

static void reg_while_it_changes(void)
{
	pthread_t other;

	fd = open_data();
	racing = reg_of("hr_event u32 a", &word, 4, 9);
	is_racing = 1;
	CHECK(pthread_create(&other, NULL, race, NULL) == 0);
	for (int i = 0; i < 300; i++) {
		errno = 0;
		if (reg_at(&racing) == 0)
			unreg_word(fd, &word, 9);
		else if (errno != EINVAL && errno != E2BIG && errno != EFAULT)
			break;
	}
	is_racing = 0;
	pthread_join(other, NULL);
	CHECK(errno == 0 || errno == EINVAL || errno == E2BIG || errno == EFAULT);
	close(fd);
	CHECK(word == 0);
}

int main(int argc, char **argv)
{
	static const struct fact facts[] = {
	    {"reg_pointers", reg_pointers},
	    {"reg_sizes", reg_sizes},
	    {"reg_members", reg_members},
	    {"reg_strings", reg_strings},
	    {"word_not_writable", word_not_writable},
	    {"word_taken_away", word_taken_away},
	    {"words_anywhere", words_anywhere},
	    {"words_of_a_file", words_of_a_file},
	    {"word_of_a_device", word_of_a_device},
	    {"unreg_mistakes", unreg_mistakes},
	    {"del_mistakes", del_mistakes},
	    {"write_mistakes", write_mistakes},
	    {"write_unreadable", write_unreadable},
	    {"reg_while_it_changes", reg_while_it_changes},
	};

	return check_facts(facts, sizeof(facts) / sizeof(*facts), argc, argv);
}
