"""What the daemon asks of the machine it runs on: names of threads, /proc, who a peer is. The lowest room."""
