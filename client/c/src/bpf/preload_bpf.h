/*
 * libutracefs-bpf.so: bpftrace and programs of libbpf, unchanged, on user_events.
 *
 *     preload_bpf.c       the wrapped calls: bpf(2), perf_event_open(2); ioctl, mmap, epoll of their files
 *     preload_tree.c      open, stat and the like of tracefs' files, from the daemon
 *     probes.c            attached programs, and the thread that runs them on the records of a stream
 *     maps.c, engine.c    maps and programs
 *     preload/            the table of our descriptors, and the functions behind the wrapped ones
 *
 * The tool's descriptors are eventfds, so epoll, dup, fcntl and close of them are the kernel's. Everything
 * behind them is changed and freed under bp_lock(), inside of a section (preload_table.h).
 */
#ifndef UTRACEFS_PRELOAD_BPF_H
#define UTRACEFS_PRELOAD_BPF_H

#include "engine.h"
#include "layout.h"
#include "maps.h"
#include "preload_table.h"
#include "utracefs_stream.h"

/* One line `utracefs: TEXT` to stderr; the same text only once in a process. */
void bp_tell(const char *format, ...) __attribute__((format(printf, 1, 2)));

#define BP_NO_PROBES "kprobes and uprobes do not exist here: programs run on events of user_events"

/* A tracepoint or a clock to which a program can be attached. With bp_lock held. */
struct bp_probe {
	char event[256]; /* SYSTEM:NAME; "": a clock */
	uint64_t period_ns, due_ns;
	int32_t pid; /* only records of this process or thread; -1: of all */
	uint32_t cpu;
	int is_enabled;
	struct bp_program *program; /* NULL: none attached */
	struct bp_probe *next;
};

/* NULL: no memory. event: "" for a clock. */
struct bp_probe *bp_probe_new(const char *event);
void bp_probe_free(struct bp_probe *probe);
void bp_probe_attach(struct bp_probe *probe, struct bp_program *program);
/* Starts the thread; before it disables the probe, it processes the records that were emitted until now. 0,
 * or -errno: no daemon. */
int bp_probe_enable(struct bp_probe *probe, int is_enabled);

/* For recordings, in place of the tool's wait, when it has read all output: runs programs on some records.
 * 1: the tool looks for output, and comes again. -1: a signal has interrupted it, as at the end of the
 * recording a SIGINT like Ctrl-C. 0: it has ended. */
int bp_replay(void);

/* Now, for programs that run without a record. */
void bp_record_of_ourselves(struct bp_record *record);

/* ---- preload_tree.c */

/* SYSTEM:NAME of an id that the tool has read. 0 or -ENOENT. */
int bt_event_name(uint32_t id, char *name, size_t size);
/* SYSTEM:NAME of all events whose format or id the tool has read, a space around each. 0 or -E2BIG. */
int bt_events_read(char *words, size_t size);
/* The context of a record for programs, valid until the next call: in the layout of the `format` that the
 * tool has read, or unchanged if it has read none. *layout: the caller's, one for each utracefs_stream_event,
 * at first NULL. NULL: the event's fields are not the ones of which the tool has read. */
const void *bt_context(struct bt_layout **layout, const struct utracefs_stream_record *record, size_t *size);
/* Whether the records are those of recordings (`utracefs bpftrace --from`), which end. A stream of them
 * begins with their first record: it is opened once, when the tool first waits, so when all its probes are
 * attached. */
int bt_is_recording(void);

#endif
