"""What the daemon asks of the machine it runs on: names of threads, /proc, who a peer is and how much its
user may hold.

The lowest room.
"""
