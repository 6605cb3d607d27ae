"""Consumers of other distributions; status bit 7.

contract   the interface of a plug-in, and the records that it gets
plugins    loading and attaching installed plug-ins, and the thread in which each runs
"""
