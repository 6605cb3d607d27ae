/* CLOCK_MONOTONIC from the time stamp counter: converts a producer's rdtsc count to nanoseconds.
 *
 * The daemon reads both clocks together whenever it takes records in (tsc_clock_look). Between two looks
 * time is interpolated linearly: the error is no larger than that of the looks, however the kernel adjusts
 * its clock (adjtime), and the result lies between the two looks, whatever the counter did. A count before
 * the last but one look (its producer was stopped between stamp and commit, or no daemon was running) is
 * extrapolated backwards with a rate measured over a longer time. A count after the last look is extrapolated
 * forwards with the same rate.
 *
 *          ns |                         .____ to          later: from `to` forwards, by `rate`
 *             |             .-----------'
 *             |     .-------' from                        between: on the line
 *             |  .-'                                      older: from `from` backwards, by `rate`
 *             +------------------------------ tsc
 *
 * The next daemon continues with the looks of this one (tsc_clock_resume; journal.h).
 *
 * A producer may claim any count: nothing is divided by it. The caller must check that the result is not in
 * the future, as for any time that a producer claims.
 *
 * A line that is steeper or flatter than the rate by more than a thousandth, or a counter that went back,
 * means that the machine was suspended or moved, or that its counter is broken: tsc_clock_look returns 1, and
 * its caller asks the kernel whether it still trusts the counter (procfs.py). The kernel itself adjusts by
 * less (500 ppm).
 */
#ifndef UTRACEFS_TSC_CLOCK_H
#define UTRACEFS_TSC_CLOCK_H

#include "machine.h"

/* Rates are 2^32 times nanoseconds per tick. Only a line at least this long gives a rate, because a look is
 * accurate to some 20 ns. */
#define TSC_CLOCK_RATE_NS 1000000u
#define TSC_CLOCK_JUMP 1000u

struct tsc_clock_pair {
    uint64_t tsc;
    uint64_t ns;
};

struct tsc_clock {
    struct tsc_clock_pair first; /* where the measurement of `rate` began */
    struct tsc_clock_pair from, to; /* the last two looks */
    uint64_t line; /* rate between them */
    uint64_t rate; /* since `first`; 0 when that is all there is */
};

static inline uint64_t tsc_clock_rate(const struct tsc_clock_pair *from, const struct tsc_clock_pair *to)
{
    return (uint64_t)(((unsigned __int128)(to->ns - from->ns) << 32) / (to->tsc - from->tsc));
}

/* Add a look: both clocks at this moment. 1: one of them jumped. */
static inline int tsc_clock_look(struct tsc_clock *c, struct tsc_clock_pair now)
{
    uint64_t off;

    if (now.tsc <= c->to.tsc || now.ns <= c->to.ns || c->to.ns == 0) {
        int jumped = c->to.ns != 0 && (now.tsc < c->to.tsc || now.ns < c->to.ns);

        c->first = c->from = c->to = now;
        c->line = 0;
        return jumped;
    }
    c->from = c->to;
    c->to = now;
    c->line = tsc_clock_rate(&c->from, &c->to);
    off = c->line > c->rate ? c->line - c->rate : c->rate - c->line;
    if (c->rate && now.ns - c->from.ns > TSC_CLOCK_RATE_NS && off > c->rate / TSC_CLOCK_JUMP) {
        c->first = c->from;
        c->rate = c->line;
        return 1;
    }
    c->rate = tsc_clock_rate(&c->first, &now);
    return 0;
}

/* Continue with an earlier clock: the beginning of its rate, and its last look. The next look checks these
 * values; invalid ones are ignored. */
static inline void tsc_clock_resume(struct tsc_clock *c, struct tsc_clock_pair first,
                                    struct tsc_clock_pair last)
{
    if (last.ns <= first.ns || last.tsc <= first.tsc)
        return;
    c->first = first;
    c->from = c->to = last;
    c->rate = tsc_clock_rate(&first, &last);
    c->line = c->rate;
}

/* CLOCK_MONOTONIC of a count that a producer claims. */
static inline uint64_t tsc_clock_ns(const struct tsc_clock *c, uint64_t tsc)
{
    unsigned __int128 later, back;

    if (tsc >= c->to.tsc) {
        later = ((unsigned __int128)(tsc - c->to.tsc) * c->rate) >> 32;
        return later < UINT64_MAX - c->to.ns ? c->to.ns + (uint64_t)later : UINT64_MAX;
    }
    if (tsc >= c->from.tsc)
        return c->from.ns + (uint64_t)(((unsigned __int128)(tsc - c->from.tsc) * c->line) >> 32);
    back = ((unsigned __int128)(c->from.tsc - tsc) * c->rate) >> 32;
    return back < c->from.ns ? c->from.ns - (uint64_t)back : 0;
}

/* The rate, as soon as it is accurate to 2 ppm; else 0. */
static inline uint64_t tsc_clock_known_rate(const struct tsc_clock *c)
{
    return c->to.ns - c->first.ns >= 10 * TSC_CLOCK_RATE_NS ? c->rate : 0;
}

/* Read both clocks together, as closely as possible: the narrowest of a few tries, because one may be
 * interrupted. Without a counter its count is 0. */
static inline struct tsc_clock_pair tsc_clock_now(void)
{
    struct tsc_clock_pair best = {0, 0};
#if defined(__x86_64__)
    uint64_t width = UINT64_MAX;

    for (int i = 0; i < 3; i++) {
        uint64_t before = __builtin_ia32_rdtsc();
        uint64_t ns = machine_clock_ns(CLOCK_MONOTONIC);
        uint64_t after = __builtin_ia32_rdtsc();

        if (after - before < width) {
            width = after - before;
            best.tsc = before + width / 2;
            best.ns = ns;
        }
    }
#else
    best.ns = machine_clock_ns(CLOCK_MONOTONIC);
#endif
    return best;
}

#endif
