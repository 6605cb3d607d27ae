"""The text of `trace` and `trace_pipe`.

headers   the lines before the records
_text     compiled: a record as a line
"""
