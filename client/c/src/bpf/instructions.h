/*
 * The instructions of RFC 9669, a row each, for engine.c, which includes this several times:
 *
 *     OP(name, code, body)      a code of struct bpf_insn
 *     SPECIAL(name, body)       chosen by more than the code: see special() in engine.c
 *
 * In bodies D and S are registers, IMM the immediate, OFF the offset. In ALU and JUMP `a` and `b` are
 * the operands, of the unsigned type u or converted to s.
 */

#define BINARY(unsigned_type, signed_type, operand, expression)          \
	{                                                                \
		typedef unsigned_type u;                                 \
		typedef signed_type s;                                   \
		u a = (u)D, b = (u)(operand);                            \
		D = (u)(expression);                                     \
		NEXT;                                                    \
	}
#define COMPARE(unsigned_type, signed_type, operand, condition)          \
	{                                                                \
		typedef unsigned_type u;                                 \
		typedef signed_type s;                                   \
		u a = (u)D, b = (u)(operand);                            \
		if (condition)                                           \
			JUMP(OFF);                                       \
		NEXT;                                                    \
	}
#define ALU(name, op, expression)                                                               \
	OP(name##64K, BPF_ALU64 | op | BPF_K, BINARY(uint64_t, int64_t, (int64_t)IMM, expression))       \
	OP(name##64X, BPF_ALU64 | op | BPF_X, BINARY(uint64_t, int64_t, S, expression))         \
	OP(name##32K, BPF_ALU | op | BPF_K, BINARY(uint32_t, int32_t, IMM, expression))         \
	OP(name##32X, BPF_ALU | op | BPF_X, BINARY(uint32_t, int32_t, S, expression))
#define SIGNED_ALU(name, expression)                                        \
	SPECIAL(name##64K, BINARY(uint64_t, int64_t, (int64_t)IMM, expression))      \
	SPECIAL(name##64X, BINARY(uint64_t, int64_t, S, expression))        \
	SPECIAL(name##32K, BINARY(uint32_t, int32_t, IMM, expression))      \
	SPECIAL(name##32X, BINARY(uint32_t, int32_t, S, expression))
#define BRANCH(name, op, condition)                                                             \
	OP(name##64K, BPF_JMP | op | BPF_K, COMPARE(uint64_t, int64_t, (int64_t)IMM, condition))         \
	OP(name##64X, BPF_JMP | op | BPF_X, COMPARE(uint64_t, int64_t, S, condition))           \
	OP(name##32K, BPF_JMP32 | op | BPF_K, COMPARE(uint32_t, int32_t, IMM, condition))       \
	OP(name##32X, BPF_JMP32 | op | BPF_X, COMPARE(uint32_t, int32_t, S, condition))

ALU(ADD, BPF_ADD, a + b)
ALU(SUB, BPF_SUB, a - b)
ALU(MUL, BPF_MUL, a * b)
ALU(DIV, BPF_DIV, b ? a / b : 0)
ALU(MOD, BPF_MOD, b ? a % b : a)
ALU(OR, BPF_OR, a | b)
ALU(AND, BPF_AND, a & b)
ALU(XOR, BPF_XOR, a ^ b)
ALU(LSH, BPF_LSH, a << (b & (8 * sizeof(u) - 1)))
ALU(RSH, BPF_RSH, a >> (b & (8 * sizeof(u) - 1)))
ALU(ARSH, BPF_ARSH, (s)a >> (b & (8 * sizeof(u) - 1)))
ALU(MOV, BPF_MOV, b)
/* Division by -1 apart: the smallest number has no negative. */
SIGNED_ALU(SDIV, b + 1 <= 1 ? (b ? 0 - a : 0) : (u)((s)a / (s)b))
SIGNED_ALU(SMOD, b + 1 <= 1 ? (b ? 0 : a) : (u)((s)a % (s)b))
OP(NEG64, BPF_ALU64 | BPF_NEG, { D = 0 - D; NEXT; })
OP(NEG32, BPF_ALU | BPF_NEG, { D = 0 - (uint32_t)D; NEXT; })
SPECIAL(MOVSX64_8, { D = (uint64_t)(int8_t)S; NEXT; })
SPECIAL(MOVSX64_16, { D = (uint64_t)(int16_t)S; NEXT; })
SPECIAL(MOVSX64_32, { D = (uint64_t)(int32_t)S; NEXT; })
SPECIAL(MOVSX32_8, { D = (uint32_t)(int8_t)S; NEXT; })
SPECIAL(MOVSX32_16, { D = (uint32_t)(int16_t)S; NEXT; })
SPECIAL(LE16, { D = htole16((uint16_t)D); NEXT; })
SPECIAL(LE32, { D = htole32((uint32_t)D); NEXT; })
SPECIAL(LE64, { D = htole64(D); NEXT; })
SPECIAL(BE16, { D = htobe16((uint16_t)D); NEXT; })
SPECIAL(BE32, { D = htobe32((uint32_t)D); NEXT; })
SPECIAL(BE64, { D = htobe64(D); NEXT; })
SPECIAL(SWAP16, { D = __builtin_bswap16((uint16_t)D); NEXT; })
SPECIAL(SWAP32, { D = __builtin_bswap32((uint32_t)D); NEXT; })
SPECIAL(SWAP64, { D = __builtin_bswap64(D); NEXT; })

BRANCH(JEQ, BPF_JEQ, a == b)
BRANCH(JNE, BPF_JNE, a != b)
BRANCH(JGT, BPF_JGT, a > b)
BRANCH(JGE, BPF_JGE, a >= b)
BRANCH(JLT, BPF_JLT, a < b)
BRANCH(JLE, BPF_JLE, a <= b)
BRANCH(JSGT, BPF_JSGT, (s)a > (s)b)
BRANCH(JSGE, BPF_JSGE, (s)a >= (s)b)
BRANCH(JSLT, BPF_JSLT, (s)a < (s)b)
BRANCH(JSLE, BPF_JSLE, (s)a <= (s)b)
BRANCH(JSET, BPF_JSET, a & b)
OP(JA, BPF_JMP | BPF_JA, { JUMP(OFF); })
OP(GOTOL, BPF_JMP32 | BPF_JA, { JUMP(IMM); })
OP(EXIT, BPF_JMP | BPF_EXIT, { goto leave; })
OP(CALL, BPF_JMP | BPF_CALL, {
	run->budget -= 16;
	r[0] = bp_helpers[IMM](run, r);
	if (run->why || run->budget < 0)
		goto ended;
	NEXT;
})
SPECIAL(CALL_LOCAL, { goto enter; })
OP(LD_IMM64, BPF_LD | BPF_IMM | BPF_DW, {
	D = (uint32_t)IMM | (uint64_t)(uint32_t)x[1].imm << 32;
	x++;
	NEXT;
})

/* Behind each row that accesses memory the same for addresses that loading has checked: r10 and an offset. */
#define LOAD(name, code, type)                                             \
	OP(name, BPF_LDX | code, {                                         \
		uint64_t from = S + (uint64_t)(int64_t)OFF;                         \
		type value;                                                \
		if (!bp_may(run, from, sizeof(value), 0))                  \
			REFUSE(from, sizeof(value), 0);                    \
		memcpy(&value, (const void *)from, sizeof(value));         \
		D = (uint64_t)value;                                       \
		NEXT;                                                      \
	})                                                                 \
	SPECIAL(name##_STACK, {                                            \
		type value;                                                \
		memcpy(&value, (const void *)(S + (uint64_t)(int64_t)OFF), sizeof(value)); \
		D = (uint64_t)value;                                       \
		NEXT;                                                      \
	})
#define STORE(name, code, type, operand)                                   \
	OP(name, code, {                                                   \
		uint64_t to = D + (uint64_t)(int64_t)OFF;                           \
		type value = (type)(operand);                              \
		if (!bp_may(run, to, sizeof(value), 1))                    \
			REFUSE(to, sizeof(value), 1);                      \
		memcpy((void *)to, &value, sizeof(value));                 \
		NEXT;                                                      \
	})                                                                 \
	SPECIAL(name##_STACK, {                                            \
		type value = (type)(operand);                              \
		memcpy((void *)(D + (uint64_t)(int64_t)OFF), &value, sizeof(value)); \
		NEXT;                                                      \
	})
LOAD(LDX8, BPF_MEM | BPF_B, uint8_t)
LOAD(LDX16, BPF_MEM | BPF_H, uint16_t)
LOAD(LDX32, BPF_MEM | BPF_W, uint32_t)
LOAD(LDX64, BPF_MEM | BPF_DW, uint64_t)
LOAD(LDSX8, BPF_MEMSX | BPF_B, int8_t)
LOAD(LDSX16, BPF_MEMSX | BPF_H, int16_t)
LOAD(LDSX32, BPF_MEMSX | BPF_W, int32_t)
STORE(ST8, BPF_ST | BPF_MEM | BPF_B, uint8_t, IMM)
STORE(ST16, BPF_ST | BPF_MEM | BPF_H, uint16_t, IMM)
STORE(ST32, BPF_ST | BPF_MEM | BPF_W, uint32_t, IMM)
STORE(ST64, BPF_ST | BPF_MEM | BPF_DW, uint64_t, (int64_t)IMM)
STORE(STX8, BPF_STX | BPF_MEM | BPF_B, uint8_t, S)
STORE(STX16, BPF_STX | BPF_MEM | BPF_H, uint16_t, S)
STORE(STX32, BPF_STX | BPF_MEM | BPF_W, uint32_t, S)
STORE(STX64, BPF_STX | BPF_MEM | BPF_DW, uint64_t, S)

/* Atomic for the tool, too, which maps global data. */
#define ATOMIC(name, code, type)                                                            \
	OP(name, BPF_STX | BPF_ATOMIC | code, {                                             \
		uint64_t to = D + (uint64_t)(int64_t)OFF;                                            \
		type *at = (type *)to, old, value = (type)S, expected = (type)r[0];         \
		if (!bp_may(run, to, sizeof(value), 1))                                     \
			REFUSE(to, sizeof(value), 1);                                       \
		if (to % sizeof(value))                                                     \
			END("an atomic operation at an address that is not aligned");       \
		switch (IMM) {                                                              \
		case BPF_XCHG:                                                              \
			old = __atomic_exchange_n(at, value, __ATOMIC_SEQ_CST);             \
			break;                                                              \
		case BPF_CMPXCHG:                                                           \
			__atomic_compare_exchange_n(at, &expected, value, 0, __ATOMIC_SEQ_CST, \
						    __ATOMIC_SEQ_CST);                      \
			r[0] = expected;                                                    \
			NEXT;                                                               \
		default:                                                                    \
			old = (IMM & ~BPF_FETCH) == BPF_ADD   ? __atomic_fetch_add(at, value, __ATOMIC_SEQ_CST) \
			      : (IMM & ~BPF_FETCH) == BPF_OR  ? __atomic_fetch_or(at, value, __ATOMIC_SEQ_CST)  \
			      : (IMM & ~BPF_FETCH) == BPF_AND ? __atomic_fetch_and(at, value, __ATOMIC_SEQ_CST) \
							      : __atomic_fetch_xor(at, value, __ATOMIC_SEQ_CST); \
		}                                                                           \
		if (IMM & BPF_FETCH)                                                        \
			S = old;                                                            \
		NEXT;                                                                       \
	})
ATOMIC(ATOMIC32, BPF_W, uint32_t)
ATOMIC(ATOMIC64, BPF_DW, uint64_t)

#undef OP
#undef SPECIAL
