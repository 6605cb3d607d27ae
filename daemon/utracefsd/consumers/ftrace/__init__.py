"""The ftrace consumer: instances of ring buffer, enable switches and options; status bit 0."""
