"""Spans, the context whose fields events take, and requests of web servers as spans."""
