/*
 * The format of an event as tools of eBPF can read it, and records in this layout.
 *
 * bpftrace compiles `format` into a C struct (0.17 without a look at the offsets), and knows `__data_loc`
 * but not `__rel_loc`; user_events' records are packed and use `__rel_loc`. So the shown format has each
 * field at the offset that C would give it, with C's types, and a record is copied into this layout.
 *
 *     packed:  common u8 u16 rel_loc  text
 *     shown:   common u8 -- u16 -- -- data_loc  text  ...  text
 *
 * bpftrace 0.23 reads a text at four times its offset. So its first bytes are there, too.
 */
#ifndef UTRACEFS_BPF_LAYOUT_H
#define UTRACEFS_BPF_LAYOUT_H

#include <stddef.h>
#include <stdint.h>

struct bt_layout;

/* Of the text of a daemon's `format`. NULL: no memory, or no such text. */
struct bt_layout *bt_layout_new(const char *format);
void bt_layout_free(struct bt_layout *layout);
/* The text that tools see. */
const char *bt_layout_text(const struct bt_layout *layout);
/* Whether a tool that has read one can be given records of the other. */
int bt_layout_is_same(const struct bt_layout *layout, const struct bt_layout *other);
/* The record in this layout, aligned, valid until the next call for any layout; NULL: it is too short for its
 * event. */
const void *bt_layout_apply(const struct bt_layout *layout, const uint8_t *record, uint32_t record_size,
			    size_t *size);

/* The kernel's types, as far as a format can name them: a block for free(3), or NULL. The machine's own BTF
 * is megabytes, which tools would parse, and knows functions that do not exist here. */
char *bt_vmlinux(size_t *size);

#endif
