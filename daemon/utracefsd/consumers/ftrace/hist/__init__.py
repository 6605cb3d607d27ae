"""Histograms: a table of counts and sums for each `hist` trigger (trigger/hist_kinds), as in the
kernel (kernel/trace/trace_events_hist.c).

A definition (`hist:keys=pid:vals=lat:sort=lat.descending`) goes through

definition     its parts (utracefs_protocol.hist) -> Definition: keys, values, variables, sort keys, and its
               canonical text; actions: onmatch, onmax, onchange
expressions    one key, value or variable: names, modifiers and operators -> a tree of HistFields
fields         HistField, its names and its text
variables      which trigger has which variable, and which triggers read it

and the compiled part then runs it for every record:

_hist          Hist: evaluates keys and values and counts; HistTable: the counts, in memory that outlives a
               daemon; include/hist_table.h has its layout and argues why a kill loses and doubles nothing;
               Entries: a sorted copy of a table's entries

tables         all tables of a daemon: their files, limits and names
program        a Definition as _hist runs it
text           the `hist` file
"""
