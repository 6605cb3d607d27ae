/*
 * CRC-32 as zlib's, with the carry-less multiplication of x86: V. Gopal et al., "Fast CRC Computation for
 * Generic Polynomials Using PCLMULQDQ Instruction", Intel 2009; names of constants as there. Four times 16
 * bytes are folded at once.
 */
#ifndef UTRACEFS_CRC32_H
#define UTRACEFS_CRC32_H

#include <stddef.h>
#include <stdint.h>

#define CRC_LEAST 64u /* bytes that can be folded */
#define CRC_STEP 16u  /* only multiples of it can be */

#ifdef __x86_64__
#include <immintrin.h>

static inline int crc_can_fold(void)
{
	return __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
}

#define CRC_CODE __attribute__((target("pclmul,sse4.1"))) static

CRC_CODE inline __m128i crc_folded(__m128i sum, __m128i by, __m128i next)
{
	__m128i low = _mm_clmulepi64_si128(sum, by, 0x00), high = _mm_clmulepi64_si128(sum, by, 0x11);
	return _mm_xor_si128(_mm_xor_si128(low, high), next);
}

/* size: as above. crc: of the data in front of it, 0: there is none. */
CRC_CODE uint32_t crc_fold(uint32_t crc, const uint8_t *data, size_t size)
{
	const __m128i k1k2 = _mm_set_epi64x(0x01c6e41596, 0x0154442bd4);
	const __m128i k3k4 = _mm_set_epi64x(0x00ccaa009e, 0x01751997d0);
	const __m128i k5 = _mm_set_epi64x(0, 0x0163cd6124);
	const __m128i poly = _mm_set_epi64x(0x01f7011641, 0x01db710641);
	const __m128i low = _mm_setr_epi32(~0, 0, ~0, 0);
	const __m128i *at = (const __m128i *)data, *end = (const __m128i *)(data + size);
	__m128i sums[4], sum, part;
	for (int i = 0; i < 4; i++)
		sums[i] = _mm_loadu_si128(at++);
	sums[0] = _mm_xor_si128(sums[0], _mm_cvtsi32_si128((int)~crc));
	for (; end - at >= 4; at += 4)
		for (int i = 0; i < 4; i++)
			sums[i] = crc_folded(sums[i], k1k2, _mm_loadu_si128(at + i));
	sum = sums[0];
	for (int i = 1; i < 4; i++)
		sum = crc_folded(sum, k3k4, sums[i]);
	while (at != end)
		sum = crc_folded(sum, k3k4, _mm_loadu_si128(at++));
	/* 128 bits to 64, then to 32 by Barrett's reduction */
	sum = _mm_xor_si128(_mm_srli_si128(sum, 8), _mm_clmulepi64_si128(sum, k3k4, 0x10));
	part = _mm_srli_si128(sum, 4);
	sum = _mm_xor_si128(_mm_clmulepi64_si128(_mm_and_si128(sum, low), k5, 0x00), part);
	part = _mm_clmulepi64_si128(_mm_and_si128(sum, low), poly, 0x10);
	part = _mm_clmulepi64_si128(_mm_and_si128(part, low), poly, 0x00);
	return ~(uint32_t)_mm_extract_epi32(_mm_xor_si128(sum, part), 1);
}
#else
static inline int crc_can_fold(void)
{
	return 0;
}

static inline uint32_t crc_fold(uint32_t crc, const uint8_t *data, size_t size)
{
	(void)data;
	(void)size;
	return crc;
}
#endif

#endif
