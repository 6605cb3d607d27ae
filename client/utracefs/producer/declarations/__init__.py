"""Declarations: checked without a daemon, made into events, or read from annotations."""
