/* memcpy and memset for records, which are small: two moves of a fixed size, which may overlap. Calls to the
 * C library take a tenth of a record's intake. */
#ifndef UTRACEFS_COPY_H
#define UTRACEFS_COPY_H

#include <string.h>

#define UT_COPY_TWICE(type, to, from, n)                                          \
	do {                                                                      \
		type first_, last_;                                               \
		memcpy(&first_, (from), sizeof(type));                            \
		memcpy(&last_, (const char *)(from) + (n) - sizeof(type), sizeof(type)); \
		memcpy((to), &first_, sizeof(type));                              \
		memcpy((char *)(to) + (n) - sizeof(type), &last_, sizeof(type));  \
	} while (0)

static inline void ut_copy(void *to, const void *from, size_t n)
{
	typedef struct {
		unsigned long long words[2];
	} sixteen;

	if (n - 8 <= 8)
		UT_COPY_TWICE(unsigned long long, to, from, n);
	else if (n - 16 <= 16)
		UT_COPY_TWICE(sixteen, to, from, n);
	else
		memcpy(to, from, n);
}

static inline void ut_clear(void *at, size_t n)
{
	if (n - 16 <= 16) {
		memset(at, 0, 16);
		memset((char *)at + n - 16, 0, 16);
	} else if (n - 32 <= 32) {
		memset(at, 0, 32);
		memset((char *)at + n - 32, 0, 32);
	} else {
		memset(at, 0, n);
	}
}

#endif
