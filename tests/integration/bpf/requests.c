/* requests OBJECT: loads it, and prints slow requests until there were 30 requests. */
#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>

struct slow {
	uint32_t pid, usec;
	char path[16];
};

static int print(void *context, void *data, size_t size)
{
	const struct slow *slow = data;

	(void)context;
	(void)size;
	printf("slow %u %.16s\n", slow->usec, slow->path);
	return 0;
}

int main(int argc, char **argv)
{
	struct bpf_object *object = bpf_object__open_file(argv[argc - 1], NULL);
	struct ring_buffer *ring;
	struct bpf_link *link;
	uint32_t key, *last = NULL, limit = 410;
	uint64_t count, *seen;
	struct bpf_map *constants, *globals;
	int by_status;

	if (!object)
		return 1;
	constants = bpf_object__find_map_by_name(object, ".rodata");
	globals = bpf_object__find_map_by_name(object, ".bss");
	bpf_map__set_initial_value(constants, &limit, sizeof(limit));
	if (bpf_object__load(object))
		return 2;
	link = bpf_program__attach(bpf_object__find_program_by_name(object, "handle"));
	if (!link)
		return 3;
	ring = ring_buffer__new(bpf_map__fd(bpf_object__find_map_by_name(object, "slow_ones")), print, NULL, NULL);
	seen = mmap(NULL, 4096, PROT_READ, MAP_SHARED, bpf_map__fd(globals), 0);
	while (*(volatile uint64_t *)seen < 30)
		if (ring_buffer__poll(ring, 100) < 0)
			return 4;
	ring_buffer__consume(ring);
	by_status = bpf_map__fd(bpf_object__find_map_by_name(object, "by_status"));
	for (; bpf_map_get_next_key(by_status, last, &key) == 0; last = &key)
		if (bpf_map_lookup_elem(by_status, &key, &count) == 0)
			printf("%u: %lu\n", key, count);
	ring_buffer__free(ring);
	bpf_link__destroy(link);
	bpf_object__close(object);
	return 0;
}
