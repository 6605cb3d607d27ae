/*
 * The instructions of RFC 9669, a row each, for engine.c, which includes this several times:
 *
 *     OP(name, code, variant, body)
 *
 * code: of struct bpf_insn. variant: what else tells instructions apart: the immediate of byte swaps and
 * atomic operations, the offset of other arithmetic, the source of calls, STACK for accesses by r10, BACK for
 * jumps.
 *
 * In bodies D and S are registers, IMM the immediate, OFF the offset, `a` and `b` operands of the unsigned
 * type u, `at` an address.
 */

#define OPERANDS(unsigned_type, signed_type, operand, ...)               \
	{                                                                \
		typedef unsigned_type u;                                 \
		typedef signed_type s;                                   \
		u a = (u)D, b = (u)(operand);                            \
		__VA_ARGS__;                                             \
		NEXT;                                                    \
	}
#define FOUR(name, class64, class32, op, variant, ...)                                                       \
	OP(name##64K, class64 | op | BPF_K, variant, OPERANDS(uint64_t, int64_t, (int64_t)IMM, __VA_ARGS__)) \
	OP(name##64X, class64 | op | BPF_X, variant, OPERANDS(uint64_t, int64_t, S, __VA_ARGS__))            \
	OP(name##32K, class32 | op | BPF_K, variant, OPERANDS(uint32_t, int32_t, IMM, __VA_ARGS__))          \
	OP(name##32X, class32 | op | BPF_X, variant, OPERANDS(uint32_t, int32_t, S, __VA_ARGS__))
#define ALU(name, op, variant, expression) FOUR(name, BPF_ALU64, BPF_ALU, op, variant, D = (u)(expression))
#define BRANCH(name, op, condition)                                                \
	FOUR(name, BPF_JMP, BPF_JMP32, op, 0, if (condition) { x += OFF; })        \
	FOUR(name##_BACK, BPF_JMP, BPF_JMP32, op, BACK, if (condition) GO_BACK(OFF))

ALU(ADD, BPF_ADD, 0, a + b)
ALU(SUB, BPF_SUB, 0, a - b)
ALU(MUL, BPF_MUL, 0, a * b)
ALU(DIV, BPF_DIV, 0, b ? a / b : 0)
ALU(MOD, BPF_MOD, 0, b ? a % b : a)
/* Division by -1 apart: the smallest number has no negative. */
ALU(SDIV, BPF_DIV, 1, b + 1 <= 1 ? (b ? 0 - a : 0) : (u)((s)a / (s)b))
ALU(SMOD, BPF_MOD, 1, b + 1 <= 1 ? (b ? 0 : a) : (u)((s)a % (s)b))
ALU(OR, BPF_OR, 0, a | b)
ALU(AND, BPF_AND, 0, a & b)
ALU(XOR, BPF_XOR, 0, a ^ b)
ALU(LSH, BPF_LSH, 0, a << (b & (8 * sizeof(u) - 1)))
ALU(RSH, BPF_RSH, 0, a >> (b & (8 * sizeof(u) - 1)))
ALU(ARSH, BPF_ARSH, 0, (s)a >> (b & (8 * sizeof(u) - 1)))
ALU(MOV, BPF_MOV, 0, b)
/* Several at once, between which nothing comes back from memory: an address on the stack; the steps of
 * bpftrace's logarithm, `D = 1; if (r > IMM) goto +1; D = 0; D <<= IMM; r >>= D`, all that follow for one r;
 * and its last, `if (D > IMM) goto +1; r = IMM`, with no jump that a processor cannot predict. Jumps may lead
 * into the middle: the others are there, too. */
OP(MOV_ADD, BPF_ALU64 | BPF_MOV | BPF_X, FUSED, { x++; D = r[x[-1].src] + (uint64_t)(int64_t)IMM; NEXT; })
OP(LOG2_STEPS, BPF_ALU64 | BPF_MOV | BPF_K, FUSED, {
	const void *const place = x->label;
	const uint8_t from = x[1].dst;
	uint64_t value = r[from];
	do {
		const uint64_t step = (uint64_t)(value > (uint64_t)(int64_t)x[1].imm) << (x[3].imm & 63);
		D = step;
		value >>= step & 63;
		x += 5;
	} while (x->label == place && x[1].dst == from);
	r[from] = value;
	RUN;
})
OP(JGT_MOV, BPF_JMP | BPF_JGT | BPF_K, FUSED, {
	const uint64_t mask = 0 - (uint64_t)(D > (uint64_t)(int64_t)IMM);
	x++;
	D = (D & mask) | ((uint64_t)(int64_t)IMM & ~mask);
	NEXT;
})
OP(NEG64, BPF_ALU64 | BPF_NEG, 0, { D = 0 - D; NEXT; })
OP(NEG32, BPF_ALU | BPF_NEG, 0, { D = 0 - (uint32_t)D; NEXT; })

#define EXTEND(name, class, type, bits) \
	OP(name##_##bits, class | BPF_MOV | BPF_X, bits, { D = (type)(int##bits##_t)S; NEXT; })
#define SWAP(bits)                                                                                     \
	OP(LE##bits, BPF_ALU | BPF_END | BPF_TO_LE, bits, { D = htole##bits((uint##bits##_t)D); NEXT; }) \
	OP(BE##bits, BPF_ALU | BPF_END | BPF_TO_BE, bits, { D = htobe##bits((uint##bits##_t)D); NEXT; }) \
	OP(SWAP##bits, BPF_ALU64 | BPF_END, bits, { D = __builtin_bswap##bits((uint##bits##_t)D); NEXT; })
EXTEND(MOVSX64, BPF_ALU64, uint64_t, 8)
EXTEND(MOVSX64, BPF_ALU64, uint64_t, 16)
EXTEND(MOVSX64, BPF_ALU64, uint64_t, 32)
EXTEND(MOVSX32, BPF_ALU, uint32_t, 8)
EXTEND(MOVSX32, BPF_ALU, uint32_t, 16)
SWAP(16)
SWAP(32)
SWAP(64)

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
OP(JA, BPF_JMP | BPF_JA, 0, { x += OFF; NEXT; })
OP(JA_BACK, BPF_JMP | BPF_JA, BACK, { GO_BACK(OFF); NEXT; })
OP(GOTOL, BPF_JMP32 | BPF_JA, 0, { x += IMM; NEXT; })
OP(GOTOL_BACK, BPF_JMP32 | BPF_JA, BACK, { GO_BACK(IMM); NEXT; })
OP(EXIT, BPF_JMP | BPF_EXIT, 0, { last = x; return r[0]; })
OP(CALL, BPF_JMP | BPF_CALL, 0, {
	run->budget -= 16;
	r[0] = bp_helpers[IMM](run, r);
	if (run->why || run->budget < 0)
		goto ended;
	NEXT;
})
OP(CALL_LOCAL, BPF_JMP | BPF_CALL, BPF_PSEUDO_CALL, {
	r[0] = bp_call_back(run, BP_CALLBACK_HANDLE + (uint64_t)(x + 1 + IMM - run->program->instructions), r);
	if (run->why)
		goto ended;
	NEXT;
})
OP(LD_IMM64, BPF_LD | BPF_IMM | BPF_DW, 0, { D = (uint64_t)x[1].label; x++; NEXT; })

/* Of each access another row for addresses that loading has checked: r10 and an offset. */
#define ACCESS(name, code, variant, type, base, is_write, is_checked, ...)                          \
	OP(name, code, variant, {                                                                   \
		const uint64_t at = (base) + (uint64_t)(int64_t)OFF;                                \
		type value;                                                                         \
		if (is_checked && !bp_may(run, at, sizeof(value), is_write)) {                      \
			bp_refuse(run, at, sizeof(value), is_write);                                \
			goto ended;                                                                 \
		}                                                                                   \
		__VA_ARGS__;                                                                        \
		NEXT;                                                                               \
	})
#define BOTH(name, code, type, base, is_write, ...)                              \
	ACCESS(name, code, 0, type, base, is_write, 1, __VA_ARGS__)              \
	ACCESS(name##_STACK, code, STACK, type, base, is_write, 0, __VA_ARGS__)
#define LOAD(name, code, type) \
	BOTH(name, BPF_LDX | code, type, S, 0, memcpy(&value, (void *)at, sizeof(value)); D = (uint64_t)value)
#define STORE(name, code, type)                                                                         \
	BOTH(ST##name, BPF_ST | BPF_MEM | code, type, D, 1, value = (type)IMM;                          \
	     memcpy((void *)at, &value, sizeof(value)))                                                 \
	BOTH(STX##name, BPF_STX | BPF_MEM | code, type, D, 1, value = (type)S;                          \
	     memcpy((void *)at, &value, sizeof(value)))
LOAD(LDX8, BPF_MEM | BPF_B, uint8_t)
LOAD(LDX16, BPF_MEM | BPF_H, uint16_t)
LOAD(LDX32, BPF_MEM | BPF_W, uint32_t)
LOAD(LDX64, BPF_MEM | BPF_DW, uint64_t)
LOAD(LDSX8, BPF_MEMSX | BPF_B, int8_t)
LOAD(LDSX16, BPF_MEMSX | BPF_H, int16_t)
LOAD(LDSX32, BPF_MEMSX | BPF_W, int32_t)
STORE(8, BPF_B, uint8_t)
STORE(16, BPF_H, uint16_t)
STORE(32, BPF_W, uint32_t)
STORE(64, BPF_DW, uint64_t)

/* Atomic for the tool, too, which maps global data. */
#define ATOMIC_OF(name, size, type, operation, ...)                                                     \
	ACCESS(name, BPF_STX | BPF_ATOMIC | size, operation, type, D, 1, 1, type *word = (type *)at;    \
	       if (at % sizeof(value)) {                                                                \
		       run->why = UNALIGNED;                                                            \
		       goto ended;                                                                      \
	       } value = (type)S; __VA_ARGS__)
#define ATOMIC(name, operation, ...)                                    \
	ATOMIC_OF(name##32, BPF_W, uint32_t, operation, __VA_ARGS__)    \
	ATOMIC_OF(name##64, BPF_DW, uint64_t, operation, __VA_ARGS__)
#define FETCHING(name, operation, function)                                             \
	ATOMIC(name, operation, function(word, value, __ATOMIC_SEQ_CST))                \
	ATOMIC(name##F, operation | BPF_FETCH, S = function(word, value, __ATOMIC_SEQ_CST))
FETCHING(AADD, BPF_ADD, __atomic_fetch_add)
FETCHING(AOR, BPF_OR, __atomic_fetch_or)
FETCHING(AAND, BPF_AND, __atomic_fetch_and)
FETCHING(AXOR, BPF_XOR, __atomic_fetch_xor)
ATOMIC(XCHG, BPF_XCHG, S = __atomic_exchange_n(word, value, __ATOMIC_SEQ_CST))
ATOMIC(CMPXCHG, BPF_CMPXCHG, __typeof__(*word) expected = (__typeof__(*word))r[0];
       __atomic_compare_exchange_n(word, &expected, value, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
       r[0] = expected)

#undef OP
