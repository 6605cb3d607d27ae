"""Consumers that other distributions bring along; status bit 7.

contract   what a plug-in must look like, and what it gets
plugins    loading, attaching and feeding those that are installed
_batch     the record path (compiled): collects records for Python
"""
