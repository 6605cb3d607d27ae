/* The kernel's types, as far as a format can name them: the BTF that tools read from
 * /sys/kernel/btf/vmlinux. The machine's own is megabytes, which they would parse, and knows functions
 * that do not exist here. */
#ifndef UTRACEFS_BPF_VMLINUX_H
#define UTRACEFS_BPF_VMLINUX_H

#include <stddef.h>

/* A block for free(3), or NULL. */
char *bt_vmlinux(size_t *size);

#endif
