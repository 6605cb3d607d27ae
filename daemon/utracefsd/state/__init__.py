"""What outlives the daemon: a log of events and settings, and the folder where a successor finds all that was
left.

log      the lines of the log: how they are written and read
folder   the files, and which of them may be removed when
living   State: keeps the log while the daemon lives; restoring from what was read
"""
