#include "vmlinux.h"

#include <linux/btf.h>
#include <stdlib.h>
#include <string.h>

static const struct {
	const char *name;
	unsigned size, encoding;
	unsigned of; /* of a typedef: the number of its type, from 1 */
} types[] = {
	{"char", 1, BTF_INT_SIGNED | BTF_INT_CHAR, 0},
	{"unsigned char", 1, 0, 0},
	{"short", 2, BTF_INT_SIGNED, 0},
	{"unsigned short", 2, 0, 0},
	{"int", 4, BTF_INT_SIGNED, 0},
	{"unsigned int", 4, 0, 0},
	{"long", 8, BTF_INT_SIGNED, 0},
	{"unsigned long", 8, 0, 0},
	{"_Bool", 1, BTF_INT_BOOL, 0},
	{"u8", 0, 0, 2},
	{"u16", 0, 0, 4},
	{"u32", 0, 0, 6},
	{"u64", 0, 0, 8},
	{"s8", 0, 0, 1},
	{"s16", 0, 0, 3},
	{"s32", 0, 0, 5},
	{"s64", 0, 0, 7},
};

char *bt_vmlinux(size_t *size)
{
	enum { COUNT = sizeof(types) / sizeof(types[0]), ROOM = 1024 };
	char *all = calloc(1, ROOM), *at = all + sizeof(struct btf_header);
	struct btf_header header = {.magic = BTF_MAGIC, .version = BTF_VERSION, .hdr_len = sizeof(header)};
	char strings[ROOM / 2];
	size_t used = 1;

	if (!all)
		return NULL;
	strings[0] = 0;
	for (size_t i = 0; i < COUNT; i++) {
		const unsigned kind = types[i].of ? BTF_KIND_TYPEDEF : BTF_KIND_INT;
		struct btf_type type = {.name_off = (unsigned)used, .info = kind << 24};
		const unsigned encoding = types[i].encoding << 24 | types[i].size * 8;

		type.size = types[i].of ? types[i].of : types[i].size; /* or type: they share their place */
		memcpy(at, &type, sizeof(type));
		at += sizeof(type);
		if (!types[i].of) {
			memcpy(at, &encoding, sizeof(encoding));
			at += sizeof(encoding);
		}
		strcpy(strings + used, types[i].name);
		used += strlen(types[i].name) + 1;
	}
	header.type_len = header.str_off = (unsigned)(at - all - sizeof(header));
	header.str_len = (unsigned)used;
	memcpy(all, &header, sizeof(header));
	memcpy(at, strings, used);
	*size = sizeof(header) + header.type_len + used;
	return all;
}
