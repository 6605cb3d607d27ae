"""Whether the compiled modules can be used in this interpreter: they rely on the main one's GIL."""

import sys

__all__ = ["CAN_TRACE"]


def _can_trace() -> bool:
    try:
        from utracefs._interpreter import is_main
    except ImportError:
        return False
    has_gil = getattr(sys, "_is_gil_enabled", None)
    return is_main() and (has_gil is None or has_gil())


CAN_TRACE = _can_trace()
