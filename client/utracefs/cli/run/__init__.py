"""What commands share that record or run a COMMAND: the daemon, an instance of their own, the loop."""
