"""Spans, the context that gives events values of fields, and requests of web servers as spans."""
