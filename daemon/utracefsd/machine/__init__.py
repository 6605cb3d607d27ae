"""Questions to the machine: names of threads, /proc, identity of peers, limits per user.

The lowest layer.

comms         names of threads
procfs        /proc and /sys
disk          calls that change files; simulated in tests
peer          identity of the process at the other end of a connection, and the user whose limits count it
shares        every limit per user
closing       closing descriptors that came from other processes
collector     when the garbage collector runs a full collection
faults        counting and logging unexpected exceptions
kept_file     files that the next daemon finds
_machine      clocks and the present cpu, for the compiled modules; simulated in tests (include/machine.h)
include/tsc_clock.h  converts counts of the time stamp counter to nanoseconds
"""
