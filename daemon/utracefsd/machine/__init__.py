"""What the daemon asks of the machine it runs on: names of threads, /proc, who a peer is and how much its
user may hold.

The lowest room.

comms    names of threads
procfs   /proc and /sys
peer     who is at the other end of a connection
shares   every limit per user
include/machine.h   clocks and the present cpu, for the compiled modules
"""
