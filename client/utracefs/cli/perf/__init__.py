"""`utracefs perf`."""
