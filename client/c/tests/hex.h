/* Bytes as hexadecimal text, for programs that tests drive by lines. */
#ifndef HEX_H
#define HEX_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* NULL: no bytes. Exactly as long as needed, so that a sanitizer sees a read past the end. */
static inline uint8_t *bytes_of(const char *hex, size_t *size)
{
	size_t n = hex ? strspn(hex, "0123456789abcdef") / 2 : 0;
	uint8_t *bytes = malloc(n ? n : 1);

	for (size_t i = 0; i < n; i++) {
		unsigned byte;

		sscanf(hex + 2 * i, "%2x", &byte);
		bytes[i] = (uint8_t)byte;
	}
	*size = n;
	return bytes;
}

static inline void print_bytes(const void *bytes, size_t size)
{
	for (size_t i = 0; i < size; i++)
		printf("%02x", ((const uint8_t *)bytes)[i]);
}

#endif
