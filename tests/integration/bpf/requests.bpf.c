/* A program for events bt_request: counts by status, and passes on slow ones. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

struct context { /* the record unchanged: packed, and the text behind it */
	__u64 common;
	__u16 status;
	__u32 usec;
	__u32 path; /* __rel_loc: where it is, counted from behind this word, and its length << 16 */
} __attribute__((packed));

struct slow {
	__u32 pid, usec;
	char path[16];
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16);
	__type(key, __u32);
	__type(value, __u64);
} by_status SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} slow_ones SEC(".maps");

const volatile __u32 limit_usec = 300;
__u64 seen;

SEC("tracepoint/user_events/bt_request")
int handle(struct context *context)
{
	__u32 status = context->status;
	__u64 one = 1, *count = bpf_map_lookup_elem(&by_status, &status);
	struct slow *slow;
	const char *path = (const char *)(context + 1) + (context->path & 0xffff);

	__sync_fetch_and_add(&seen, 1);
	if (count)
		__sync_fetch_and_add(count, 1);
	else
		bpf_map_update_elem(&by_status, &status, &one, BPF_NOEXIST);
	if (context->usec < limit_usec)
		return 0;
	slow = bpf_ringbuf_reserve(&slow_ones, sizeof(*slow), 0);
	if (!slow)
		return 0;
	slow->pid = bpf_get_current_pid_tgid() >> 32;
	slow->usec = context->usec;
	for (int i = 0; i < sizeof(slow->path); i++) {
		slow->path[i] = path[i];
		if (!path[i])
			break;
	}
	bpf_ringbuf_submit(slow, 0);
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
