"""Measurements: `python -m bench [NAME]...`. Each figure has a baseline from the same run."""
