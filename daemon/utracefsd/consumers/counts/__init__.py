"""Counts records by event and process, for tools that show rates. Status bit 7.

counts    the open files `event_counts`
_count    the record path (compiled): a table of counts, and a probe for each event
"""
