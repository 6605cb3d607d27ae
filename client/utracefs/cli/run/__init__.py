"""Shared by commands that record or run a COMMAND: the daemon, a private instance, the loop."""
