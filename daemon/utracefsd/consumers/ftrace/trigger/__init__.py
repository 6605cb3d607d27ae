"""Triggers: actions when an event fires (Documentation/trace/events.rst, 6).

commands        the file `trigger`: the table of kinds; reading, writing, restoring
kind            common to all kinds: place, command, filter, count; and the simple ones, like traceon
hist_kinds      hist, enable_hist, disable_hist, and the file `hist`
_triggers       compiled: the kinds on the record path
"""
