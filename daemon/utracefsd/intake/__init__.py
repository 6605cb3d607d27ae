"""Taking in: the daemon's side of shared data rings, merged by time, and how far each is consumed.

rings          which rings there are, their limits and doorbells

Compiled:

_intake        rounds over all rings, oldest record first
_data_ring     one producer's ring, whose memory is hostile
_journal       how far each ring is consumed, kept for a successor; include/journal.h has the argument,
               journal.pxd its functions
_index_table   write_index -> event, of one data connection; records that come over the socket enter here
"""
