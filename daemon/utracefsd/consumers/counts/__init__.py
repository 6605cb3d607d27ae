"""Counting records by event and process, for those who look at rates. Status bit 7.

counts    who counts what: the open files `event_counts`
_count    the record path (compiled): a table of counts, and a probe for each event
"""
