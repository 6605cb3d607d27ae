"""State that outlives the daemon: a log of events and settings, and the folder where the next daemon finds
it.

log       the lines of the log: writing and reading
log_file  the file of the log: two areas, valid after a kill at any moment
folder    the files of the folder, and when each may be removed
living    State: keeps the log while the daemon runs; restoring from a log
"""
