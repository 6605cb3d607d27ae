#include "layout.h"

#include <ctype.h>
#include <linux/btf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "stream_events.h"

#define MAX_OFFSET 65535u /* of a location word */
#define COMMON 8u	  /* bytes of the common fields, which stay where they are */
#define SECOND 1024u	  /* bytes of a text's second copy: no tool reads more */
#define CONTEXT (4 * (MAX_OFFSET + 1) + SECOND + 1)
#define NAME 256u

struct move {
	uint32_t from, to, size;
};

struct word {
	uint32_t from, to;
	int is_rel;
};

struct bt_layout {
	char *text;
	uint8_t *context; /* CONTEXT; bytes between fields stay 0 */
	uint32_t packed, shown; /* bytes of the fixed fields */
	uint32_t nr_moves, nr_words;
	struct move *moves;
	struct word *words;
};

struct field {
	char type[NAME], name[NAME];
	uint32_t offset, size, count; /* count: of an array's elements; 0: no array */
	int is_signed, is_loc, is_rel;
};

/* ---- the text */

/* `decl` is "TYPE NAME" with [] behind either. 0, or -1. */
static int read_field(const char *line, struct field *field)
{
	char declared[NAME], *name, *bracket;

	memset(field, 0, sizeof(*field));
	if (sscanf(line, "\tfield:%255[^;]; offset:%u; size:%u; signed:%d;", declared, &field->offset, &field->size,
		   &field->is_signed) != 4)
		return -1;
	name = strrchr(declared, ' ');
	if (!name || field->offset > MAX_OFFSET || field->size > MAX_OFFSET)
		return -1;
	*name++ = 0;
	field->is_rel = strncmp(declared, "__rel_loc ", 10) == 0;
	field->is_loc = field->is_rel || strncmp(declared, "__data_loc ", 11) == 0;
	if (field->is_loc && field->size != 4)
		return -1;
	bracket = strchr(name, '[');
	if (bracket) {
		field->count = (uint32_t)atoi(bracket + 1);
		*bracket = 0;
	}
	snprintf(field->type, NAME, "%s", field->is_loc ? strchr(declared, ' ') + 1 : declared);
	snprintf(field->name, NAME, "%s", name);
	return 0;
}

/* As declared, in C, and in BTF: bytes, and how it is encoded. */
static const struct type {
	const char *declared, *in_c;
	uint32_t size, encoding;
} types[] = {
	{"u8", "unsigned char", 1, 0}, {"s8", "char", 1, BTF_INT_SIGNED}, {"u16", "unsigned short", 2, 0},
	{"s16", "short", 2, BTF_INT_SIGNED}, {"u32", "unsigned int", 4, 0}, {"s32", "int", 4, BTF_INT_SIGNED},
	{"u64", "unsigned long", 8, 0}, {"s64", "long", 8, BTF_INT_SIGNED}, {"bool", "_Bool", 1, BTF_INT_BOOL},
};
enum { NR_TYPES = sizeof(types) / sizeof(types[0]) };

/* C's type, and the size of an element. Types that C knows only by a declaration are bytes. */
static const char *type_of(struct field *field, uint32_t *element)
{
	const char *declared = strcmp(field->type, "struct bool") ? field->type : "u8";
	char of_array[NAME];

	/* The libraries' array: struct u32_4, 16 bytes. */
	if (sscanf(declared, "struct %255[us0-9]_%u", of_array, &field->count) == 2)
		declared = of_array;
	for (const struct type *type = types; type < types + NR_TYPES - 1; type++)
		if ((strcmp(declared, type->declared) == 0 || (strcmp(declared, type->in_c) == 0 && type->size < 8)) &&
		    field->size == type->size * (field->count ? field->count : 1)) {
			*element = type->size;
			return type->in_c;
		}
	*element = 1;
	field->count = field->size;
	return "unsigned char";
}

/* A field's name may be anything; the tool compiles it: no keyword of C, and none of a field in front, of
 * which `text` has the lines. */
static void make_name(char *name, const char *text)
{
	static const char keywords[] =
		" asm auto break case char const continue default do double else enum extern float for goto if inline "
		"int linux long register restrict return short signed sizeof static struct switch typedef typeof union "
		"unix unsigned void volatile while _Bool __FILE__ __LINE__ __func__ ";
	char words[3][NAME + 2];
	size_t length = strlen(name);

	for (size_t i = 0; i < length; i++)
		if (!isalnum((unsigned char)name[i]) || (unsigned char)name[i] > 127)
			name[i] = '_';
	if (!length || isdigit((unsigned char)name[0])) {
		memmove(name + 1, name, length < NAME - 1 ? length + 1 : length);
		name[0] = '_';
	}
	for (length = strlen(name); length < NAME - 1; name[length++] = '_', name[length] = 0) {
		for (int i = 0; i < 3; i++)
			snprintf(words[i], sizeof(words[i]), " %s%c", name, " ;["[i]);
		if (!strstr(keywords, words[0]) && !strstr(text, words[1]) && !strstr(text, words[2]))
			break;
	}
}

static void add_move(struct bt_layout *layout, uint32_t from, uint32_t to, uint32_t size)
{
	struct move *last = layout->nr_moves ? &layout->moves[layout->nr_moves - 1] : NULL;

	if (last && last->from + last->size == from && last->to + last->size == to)
		last->size += size;
	else
		layout->moves[layout->nr_moves++] = (struct move){from, to, size};
}

/* Writes the field's line, and notes how it is copied. */
static void add_field(struct bt_layout *layout, FILE *text, struct field *field)
{
	uint32_t element = 4, to;
	const char *type = field->is_loc ? NULL : type_of(field, &element);

	to = (layout->shown + element - 1) / element * element;
	if (field->offset < COMMON)
		to = field->offset;
	if (field->is_loc) {
		layout->words[layout->nr_words++] = (struct word){field->offset, to, field->is_rel};
		fprintf(text, "\tfield:__data_loc %s[] %s;", strncmp(field->type, "char", 4) ? "unsigned char" : "char",
			field->name);
	} else if (field->count) {
		fprintf(text, "\tfield:%s %s[%u];", type, field->name, field->count);
	} else {
		fprintf(text, "\tfield:%s %s;", type, field->name);
	}
	fprintf(text, "\toffset:%u;\tsize:%u;\tsigned:%d;\n", to, field->size, field->is_signed);
	add_move(layout, field->offset, to, field->size);
	layout->shown = to + field->size;
	if (field->offset + field->size > layout->packed)
		layout->packed = field->offset + field->size;
}

static int read_format(struct bt_layout *layout, const char *format, FILE *text)
{
	struct field field;
	size_t length;

	for (const char *at = format; *at; at += length + (at[length] != 0)) {
		length = strcspn(at, "\n");
		if (strncmp(at, "\tfield:", 7)) {
			fprintf(text, "%.*s%s", (int)length, at, at[length] ? "\n" : "");
			continue;
		}
		if (read_field(at, &field) || fflush(text))
			return -1;
		make_name(field.name, layout->text);
		add_field(layout, text, &field);
		if (layout->shown > MAX_OFFSET / 2)
			return -1;
	}
	return 0;
}

struct bt_layout *bt_layout_new(const char *format)
{
	struct bt_layout *layout = calloc(1, sizeof(*layout));
	size_t count = 1, size;
	FILE *text;
	int error;

	if (!layout)
		return NULL;
	for (const char *at = format; (at = strstr(at, "\tfield:")); at++)
		count++;
	layout->moves = calloc(count, sizeof(*layout->moves));
	layout->words = calloc(count, sizeof(*layout->words));
	layout->context = calloc(1, CONTEXT);
	text = open_memstream(&layout->text, &size);
	error = !text || !layout->moves || !layout->words || !layout->context || read_format(layout, format, text);
	if (text && fclose(text))
		error = 1;
	if (error) {
		bt_layout_free(layout);
		return NULL;
	}
	return layout;
}

void bt_layout_free(struct bt_layout *layout)
{
	if (!layout)
		return;
	free(layout->moves);
	free(layout->words);
	free(layout->context);
	free(layout->text);
	free(layout);
}

const char *bt_layout_text(const struct bt_layout *layout)
{
	return layout->text;
}

int bt_layout_is_same(const struct bt_layout *layout, const struct bt_layout *other)
{
	return strcmp(ut_behind_id(layout->text), ut_behind_id(other->text)) == 0;
}

/* ---- records */

/* Sizes of most fields, and of some of them together, without a call. */
static inline void copy(uint8_t *to, const uint8_t *from, uint32_t size)
{
#define OF(n) case n: memcpy(to, from, n); break
	switch (size) {
		OF(1); OF(2); OF(4); OF(8); OF(10); OF(12); OF(16);
	default:
		memcpy(to, from, size);
	}
}

/* Where the data of a location word are; none if they are outside of the record. Loads the word once. */
static inline uint32_t data_of(const struct word *word, const uint8_t *record, uint32_t size, uint32_t *at)
{
	uint32_t value, length;

	memcpy(&value, record + word->from, 4);
	value = *(volatile uint32_t *)&value;
	*at = (value & 0xffff) + (word->is_rel ? word->from + 4 : 0);
	length = value >> 16;
	return *at <= size && length <= size - *at ? length : 0;
}

/* Copies the data of location words behind the fixed fields, each with a NUL. Returns the context's size.
 *
 * With the first copies in [begin, begin + length), the second are in [4 begin, 4 begin + 4 length): no two
 * overlap if 3 begin >= length. */
static size_t copy_data(const struct bt_layout *layout, const uint8_t *record, uint32_t size)
{
	uint8_t *context = layout->context;
	uint32_t begin = (layout->shown + 7) & ~7u, length = 0, at;
	size_t end = begin;
	int has_second;

	for (uint32_t i = 0; i < layout->nr_words; i++)
		length += data_of(&layout->words[i], record, size, &at) + 1;
	has_second = length <= 3 * (MAX_OFFSET - length) && length < MAX_OFFSET - begin;
	if (has_second && 3 * begin < length)
		begin = (length + 2) / 3;
	for (uint32_t i = 0; i < layout->nr_words; i++) {
		uint32_t n = data_of(&layout->words[i], record, size, &at), value;

		if (n > MAX_OFFSET - begin)
			n = 0;
		value = begin | n << 16;
		memcpy(context + layout->words[i].to, &value, 4);
		memcpy(context + begin, record + at, n);
		context[begin + n] = 0;
		end = begin + n + 1;
		if (has_second) {
			uint32_t first = n < SECOND ? n : SECOND;

			memcpy(context + 4 * begin, record + at, first);
			context[4 * begin + first] = 0;
			end = 4 * begin + first + 1;
		}
		begin += n + (begin + n < MAX_OFFSET);
	}
	return end;
}

const void *bt_layout_apply(const struct bt_layout *layout, const uint8_t *record, uint32_t record_size,
			    size_t *size)
{
	if (record_size < layout->packed)
		return NULL;
	for (uint32_t i = 0; i < layout->nr_moves; i++)
		copy(layout->context + layout->moves[i].to, record + layout->moves[i].from, layout->moves[i].size);
	*size = layout->nr_words ? copy_data(layout, record, record_size) : (layout->shown + 7) & ~7u;
	return layout->context;
}

/* ---- the kernel's types */

char *bt_vmlinux(size_t *size)
{
	enum { COUNT = 2 * NR_TYPES };
	struct {
		struct btf_header header;
		uint32_t words[COUNT][4];
		char names[256];
	} all = {.header = {BTF_MAGIC, .version = BTF_VERSION, .hdr_len = sizeof(all.header), .str_len = 1}};
	char *made = malloc(sizeof(all));

	for (size_t i = 0; i < COUNT; i++) {
		const struct type *type = &types[i / 2];
		const uint32_t words[4] = {all.header.str_len, BTF_KIND_INT << 24, type->size,
					   type->encoding << 24 | type->size * 8};

		memcpy(all.words[i], words, sizeof(words));
		all.header.str_len += (uint32_t)sprintf(all.names + all.header.str_len, "%s",
							i % 2 ? type->in_c : type->declared) + 1;
	}
	all.header.type_len = all.header.str_off = sizeof(all.words);
	*size = sizeof(all.header) + sizeof(all.words) + all.header.str_len;
	return made ? memcpy(made, &all, sizeof(all)) : NULL;
}
