"""Intake: the daemon's side of shared data rings. Takes their records, merged by time, and keeps how far each
ring is consumed.

rings          all rings, their limits and doorbells

Compiled:

_intake        rounds over all rings, oldest record first
_data_ring     one producer's ring, in memory that the producer can change
_writers       the threads of one process: thread id and name of its records
_journal       how far each ring is consumed, kept for the next daemon; include/journal.h has the argument,
               journal.pxd its functions
_index_table   write_index -> event, of one data connection; records that come over the socket enter here
"""
