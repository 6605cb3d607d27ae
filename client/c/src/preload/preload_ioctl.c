/*
 * The ioctls of user_events_data, as the kernel's user_events_ioctl_reg, _unreg and _del take them: struct
 * rules, order of errors, and the values stored at the end. Only the kernel follows pointers (memory.h).
 */
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include "memory.h"
#include "preload_files.h"
#include "preload_next.h"

/* From linux/user_events.h, which not every system has: the layouts are the kernel's ABI. */
#define DIAG_IOCSREG 0xC0082A00ul
#define DIAG_IOCSDEL 0x40082A01ul
#define DIAG_IOCSUNREG 0x40082A02ul

struct user_reg {
	uint32_t size;
	uint8_t enable_bit;
	uint8_t enable_size;
	uint16_t flags;
	uint64_t enable_addr;
	uint64_t name_args;
	uint32_t write_index;
} __attribute__((packed));

struct user_unreg {
	uint32_t size;
	uint8_t disable_bit;
	uint8_t reserved;
	uint16_t reserved2;
	uint64_t disable_addr;
} __attribute__((packed));

_Static_assert(sizeof(struct user_reg) == 28 && sizeof(struct user_unreg) == 16, "the kernel's layout");

#define FLAGS 0x3u /* USER_EVENT_REG_PERSIST, USER_EVENT_REG_MULTI_FORMAT */
#define COMMAND_BYTES (UT_MAX_COMMAND + 1) /* with NUL */
#define MAX_STRUCT 4096u /* the kernel's: a page */

/* As copy_struct_from_user: a longer, newer struct is accepted if its additional bytes are 0. 0 or -errno. */
static int copy_struct(void *to, size_t least, const void *from)
{
	unsigned char all[MAX_STRUCT];
	uint32_t size;
	size_t i;

	if (ut_copy_in(&size, from, sizeof(size)))
		return -EFAULT;
	if (size > MAX_STRUCT)
		return -E2BIG;
	if (size < least)
		return -EINVAL;
	if (ut_copy_in(all, from, size))
		return -EFAULT;
	for (i = least; i < size; i++)
		if (all[i])
			return -E2BIG;
	memcpy(to, all, least);
	return 0;
}

/* Up to and with its NUL, page by page: memory after it may be unmapped. 0 or -errno. */
static int copy_string(char *to, const char *from)
{
	size_t done = 0;

	while (done < COMMAND_BYTES) {
		const uintptr_t at = (uintptr_t)from + done;
		size_t size = UT_PAGE - at % UT_PAGE;

		if (size > COMMAND_BYTES - done)
			size = COMMAND_BYTES - done;
		if (ut_copy_in(to + done, (const void *)at, size))
			return -EFAULT;
		if (memchr(to + done, '\0', size))
			return 0;
		done += size;
	}
	return -EINVAL;
}

static long reg(struct ut_file *file, struct user_reg *user)
{
	struct ut_session *session = atomic_load(&ut_data_file(file)->session);
	char command[COMMAND_BYTES];
	struct user_reg asked;
	uint32_t write_index;
	uint16_t event_id = 0;
	const char *space;
	void *word;
	long error;

	error = copy_struct(&asked, sizeof(asked), user);
	if (error)
		return error;
	if (asked.flags & ~FLAGS || (asked.enable_size != 4 && asked.enable_size != 8) ||
	    asked.enable_addr % asked.enable_size || asked.enable_bit > asked.enable_size * 8 - 1)
		return -EINVAL;
	if ((int64_t)asked.enable_addr < 0) /* the upper half of the addresses is the kernel's */
		return -EFAULT;
	word = (void *)(uintptr_t)asked.enable_addr;
	if (ut_enabler_is_known(word, asked.enable_bit))
		return -EADDRINUSE;
	error = copy_string(command, (const char *)(uintptr_t)asked.name_args);
	if (error)
		return error;
	space = strchrnul(command, ' ');
	if (memchr(command, ':', (size_t)(space - command)))
		return -EINVAL;
	error = ut_session_register(session, command, asked.flags, &event_id, &write_index);
	if (error)
		return error;
	ut_file_note(file, write_index, command, asked.flags, event_id);
	error = ut_enabler_add(command, asked.flags, event_id, word, asked.enable_size, asked.enable_bit);
	if (error) /* the file keeps the event, as in the kernel */
		return error;
	/* The kernel ignores the result, too. */
	(void)ut_copy_out((char *)user + offsetof(struct user_reg, write_index), &write_index, sizeof(write_index));
	return 0;
}

static long unreg(const struct user_unreg *user)
{
	struct user_unreg asked;
	const int error = copy_struct(&asked, sizeof(asked), user);

	if (error)
		return error;
	if (asked.reserved || asked.reserved2)
		return -EINVAL;
	return ut_enabler_remove((void *)(uintptr_t)asked.disable_addr, asked.disable_bit);
}

static long del(struct ut_file *file, const char *user)
{
	char name[COMMAND_BYTES];
	const int error = copy_string(name, user);

	return error ? error : ut_session_delete(atomic_load(&ut_data_file(file)->session), name);
}

int ut_is_ioctl(unsigned long request)
{
	return request == DIAG_IOCSREG || request == DIAG_IOCSDEL || request == DIAG_IOCSUNREG;
}

long ut_ioctl(struct ut_file *file, unsigned long request, void *argument)
{
	switch (request) {
	case DIAG_IOCSREG:
		return reg(file, argument);
	case DIAG_IOCSDEL:
		return del(file, argument);
	default:
		return unreg(argument);
	}
}
