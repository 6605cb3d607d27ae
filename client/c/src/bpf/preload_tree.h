/*
 * Files of tracefs for tools of eBPF, from the daemon; no mount is needed. The names of
 * /sys/kernel/tracing and /sys/kernel/debug/tracing are answered here:
 *
 *     available_events, events/SYSTEM/NAME/id    as the daemon has them
 *     events/SYSTEM/NAME/format                  as layout.h shows it
 *     available_filter_functions                 empty: there are no functions
 *     /sys/kernel/btf/vmlinux                    the types that a format can name
 *
 * and the directories that lead there. Others do not exist. An open file is a copy of that moment.
 */
#ifndef UTRACEFS_BPF_PRELOAD_TREE_H
#define UTRACEFS_BPF_PRELOAD_TREE_H

#include <stddef.h>
#include <stdint.h>

#include "layout.h"
#include "utracefs_stream.h"

/* SYSTEM:NAME of an id that the tool has read. 0 or -ENOENT. */
int bt_event_name(uint32_t id, char *name, size_t size);
/* SYSTEM:NAME of all events whose format or id the tool has read, separated by spaces. 0 or -E2BIG. */
int bt_events_read(char *words, size_t size);
/* The context of a record for programs, valid until the next call: in the layout of the `format` that
 * the tool has read, or unchanged if it has read none. *layout: the caller's, one for each
 * utracefs_stream_event, at first NULL. NULL: the event's fields are not the ones of which the tool
 * has read. */
const void *bt_context(struct bt_layout **layout, const struct utracefs_stream_record *record, size_t *size);
/* Whether the records are those of recordings (`utracefs bpftrace --from`), which end. A stream of
 * them begins with their first record: it is opened once, when the tool first waits, so when all its
 * probes are attached. */
int bt_is_recording(void);

#endif
