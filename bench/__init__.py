"""Measurements: `python -m bench [NAME]...`. Each figure stands beside a baseline taken in the same run."""
