"""Other processes: their memory, their state in /proc, and our permissions."""
