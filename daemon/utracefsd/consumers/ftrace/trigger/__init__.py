"""Triggers: what happens when an event fires, besides its record (Documentation/trace/events.rst, 6).

commands    the file `trigger`: what a line means, and the table of kinds
kinds       traceon, traceoff, snapshot, stacktrace, enable_event, disable_event
_trigger    compiled: what every trigger is on the record path
_actions    compiled: what those kinds do there
_cells      compiled: counts and switches, kept where a successor finds them
"""
