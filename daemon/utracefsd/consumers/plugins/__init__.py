"""Consumers that other distributions bring along; status bit 7."""
