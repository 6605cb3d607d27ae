"""Other processes: their memory, their state in /proc, and what we may do to them."""
