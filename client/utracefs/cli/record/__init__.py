"""`utracefs record`."""
