"""The text of `trace` and `trace_pipe`.

headers   the lines before the records, and the options that shape the text
_text     compiled: a record as a line
"""
