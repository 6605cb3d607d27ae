/* The operations of transcripts (tests/conformance), and their other lines. Used by player.c alone. */
#ifndef UTRACEFS_TESTS_SCRIPT_H
#define UTRACEFS_TESTS_SCRIPT_H

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The next word of *rest, which then begins behind the space after it; "" at the end. */
static char *word(char **rest)
{
	char *found = *rest + strspn(*rest, " ");
	char *end = found + strcspn(found, " ");

	*rest = *end ? end + 1 : end;
	*end = '\0';
	return found;
}

static int hex_byte(const char *digits)
{
	char two[3] = {digits[0], digits[0] ? digits[1] : '\0', '\0'};

	return (int)strtol(two, NULL, 16);
}

/* Escapes \n \t \r \0 \\ \xHH. Returns the number of bytes; a NUL follows them. */
static size_t decode(const char *text, unsigned char *out)
{
	static const char letters[] = "ntr0", bytes[] = "\n\t\r";
	unsigned char *at = out;

	for (; *text; text++) {
		const char *known;

		if (*text != '\\') {
			*at++ = (unsigned char)*text;
		} else if (text[1] == 'x') {
			*at++ = (unsigned char)hex_byte(text + 2);
			text += 3;
		} else if (!text[1]) {
			*at++ = '\\';
		} else {
			text++;
			known = strchr(letters, *text);
			*at++ = (unsigned char)(known ? bytes[known - letters] : *text);
		}
	}
	*at = 0;
	return (size_t)(at - out);
}

/* One field of a record: u32:1 s16:-2 x:0102 s:text z:COUNT r:COUNT:BYTE loc:OFFSET,SIZE. Its size. */
static size_t field(char *token, unsigned char *out)
{
	char *value = strchr(token, ':'), *more;

	if (!value)
		return 0;
	*value++ = '\0';
	if (!strcmp(token, "x")) {
		size_t n = strlen(value) / 2;

		for (size_t i = 0; i < n; i++)
			out[i] = (unsigned char)hex_byte(value + 2 * i);
		return n;
	}
	if (!strcmp(token, "s"))
		return decode(value, out);
	if (!strcmp(token, "z") || !strcmp(token, "r")) {
		size_t n = strtoul(value, &more, 0);

		memset(out, *more ? (int)strtol(more + 1, NULL, 0) : 0, n);
		return n;
	}
	if (!strcmp(token, "loc")) {
		uint32_t offset = (uint32_t)strtoul(value, &more, 0);
		uint32_t loc = (uint32_t)strtoul(more + 1, NULL, 0) << 16 | offset;

		memcpy(out, &loc, 4);
		return 4;
	}
	/* sN or uN; little-endian as the machine. */
	uint64_t number = *value == '-' ? (uint64_t)strtoll(value, NULL, 0) : strtoull(value, NULL, 0);

	memcpy(out, &number, (size_t)atoi(token + 1) / 8);
	return (size_t)atoi(token + 1) / 8;
}

static size_t fields(char *text, unsigned char *out)
{
	size_t n = 0;
	char *token;

	while (*(token = word(&text)))
		n += field(token, out + n);
	return n;
}

/* Content: each line behind "| ", what is not printable ASCII or tab as \xHH. */
static void show(const unsigned char *data, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		if (!i || data[i - 1] == '\n')
			fputs("| ", stdout);
		if (data[i] == '\n' || data[i] == '\t' || (data[i] >= 32 && data[i] < 127))
			putchar(data[i]);
		else
			printf("\\x%02x", data[i]);
	}
	if (n && data[n - 1] != '\n')
		puts("\n\\ no newline at end");
}

/* "-1 ENOENT(2)" of errno. */
static const char *errno_text(void)
{
	static char text[48];
	const char *name = strerrorname_np(errno);

	snprintf(text, sizeof(text), "-1 %s(%d)", name ? name : "?", errno);
	return text;
}

#endif
