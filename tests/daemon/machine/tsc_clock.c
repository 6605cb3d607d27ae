/* tsc_clock.h for a judge: each line of stdin is `look TSC NS`, answered with 1 when a clock jumped and 0
 * otherwise, or `ns TSC`, answered with nanoseconds. `now` says both clocks at once; `resume TSC NS TSC NS`
 * is a new clock that continues another one, without a response. */
#include "tsc_clock.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

int main(void)
{
    struct tsc_clock clock = {0};
    char line[128];

    while (fgets(line, sizeof(line), stdin)) {
        uint64_t tsc = 0, ns = 0, last_tsc, last_ns;

        if (sscanf(line, "look %" SCNu64 " %" SCNu64, &tsc, &ns) == 2) {
            struct tsc_clock_pair now = {tsc, ns};
            printf("%d\n", tsc_clock_look(&clock, now));
        } else if (sscanf(line, "ns %" SCNu64, &tsc) == 1) {
            printf("%" PRIu64 "\n", tsc_clock_ns(&clock, tsc));
        } else if (sscanf(line, "resume %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64, &tsc, &ns, &last_tsc,
                          &last_ns) == 4) {
            struct tsc_clock_pair first = {tsc, ns}, last = {last_tsc, last_ns};
            memset(&clock, 0, sizeof(clock));
            tsc_clock_resume(&clock, first, last);
            printf("\n");
        } else if (!strncmp(line, "now", 3)) {
            struct tsc_clock_pair now = tsc_clock_now();
            printf("%" PRIu64 " %" PRIu64 "\n", now.tsc, now.ns);
        } else {
            return 2;
        }
        fflush(stdout);
    }
    return 0;
}
