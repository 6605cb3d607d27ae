"""Taking in: the daemon's side of shared data rings, merged by time, and how far each is consumed.

rings          which rings there are, their limits and doorbells
_intake        rounds over all rings, oldest record first
"""
