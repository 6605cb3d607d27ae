"""Histograms: a table of counts and sums for each `hist` trigger (trigger/hist_kinds), as in the
kernel (kernel/trace/trace_events_hist.c).

A definition (`hist:keys=pid:vals=lat:sort=lat.descending`) goes through

definition     text -> its parts -> Definition: keys, values, variables, sort keys, and its canonical text
expressions    one key, value or variable: names, modifiers and operators -> a tree of HistFields
fields         what a HistField is, how it is called and printed
variables      who has which variable, and who reads it
actions        onmatch, onmax, onchange: what is done besides counting
numbers        numbers in texts, as the kernel's kstrtoull() reads them
errors         HistError: an errno, and what goes into error_log

and is then run for every record by the compiled

_hist          Hist: evaluates keys and values and counts; HistTable: the counts, in memory that outlives a
               daemon; include/hist_table.h has its layout and argues why a kill loses and doubles nothing

_entries       Entries: a copy of what a table holds, sorted

tables         all tables of a daemon: their files, limits and names
program        a Definition as what _hist runs
text           the `hist` file
syscalls       names for the modifier .syscall
"""
