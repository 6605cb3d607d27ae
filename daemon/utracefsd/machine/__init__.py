"""What the daemon asks of the machine it runs on: names of threads, /proc, who a peer is and how much its
user may hold.

The lowest room.

comms    names of threads
procfs   /proc and /sys
peer     who is at the other end of a connection
shares   every limit per user
tsc      whether the time stamp counter may stand for the clock
kept_file  files that a successor finds
include/machine.h   clocks and the present cpu, for the compiled modules
include/tsc_clock.h counts of the time stamp counter as nanoseconds
"""
