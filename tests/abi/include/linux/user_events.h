/* The kernel's interface of user_events as programs see it since Linux 6.4, for machines whose headers lack
 * it. Layouts and numbers only; docs/kernel-abi.md tells their meaning. */
#ifndef LINUX_USER_EVENTS_H
#define LINUX_USER_EVENTS_H

#include <linux/ioctl.h>
#include <linux/types.h>

enum user_reg_flag {
	USER_EVENT_REG_PERSIST = 1U << 0,      /* the event outlives its last reference */
	USER_EVENT_REG_MULTI_FORMAT = 1U << 1, /* several formats may have one name */
	USER_EVENT_REG_MAX = 1U << 2,          /* bits from here on are refused */
};

/* The argument of DIAG_IOCSREG. 28 bytes, without gaps. */
struct user_reg {
	__u32 size;        /* of the structure */
	__u8 enable_bit;   /* 0 to 31 or 63 */
	__u8 enable_size;  /* of the word: 4 or 8 */
	__u16 flags;       /* enum user_reg_flag */
	__u64 enable_addr; /* of the word, a multiple of its size */
	__u64 name_args;   /* address of the command string */
	__u32 write_index; /* the answer: what records begin with */
} __attribute__((__packed__));

/* The argument of DIAG_IOCSUNREG. 16 bytes, without gaps. */
struct user_unreg {
	__u32 size;
	__u8 disable_bit;
	__u8 __reserved;    /* 0 */
	__u16 __reserved2;  /* 0 */
	__u64 disable_addr;
} __attribute__((__packed__));

#define DIAG_IOC_MAGIC '*'
#define DIAG_IOCSREG _IOWR(DIAG_IOC_MAGIC, 0, struct user_reg *)
#define DIAG_IOCSDEL _IOW(DIAG_IOC_MAGIC, 1, char *)
#define DIAG_IOCSUNREG _IOW(DIAG_IOC_MAGIC, 2, struct user_unreg *)

#endif
