"""The perf consumer: counting and sampling; status bit 1."""
