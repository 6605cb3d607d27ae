"""For all tests."""

from __future__ import annotations

import signal

# A shell that runs something in the background lets it ignore SIGINT, and so would every program that a test
# starts and interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)
