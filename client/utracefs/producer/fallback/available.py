"""Whether the compiled modules can be used: they need the GIL of the main interpreter, and libutracefs."""

import sys
from _warnings import warn
from posix import fstat


def _can_trace() -> bool:
    try:
        from utracefs.producer.fallback._interpreter import is_main
    except ImportError:
        return False
    has_gil = getattr(sys, "_is_gil_enabled", None)
    return is_main() and (has_gil is None or has_gil()) and _has_library()


def _has_library() -> bool:
    """The loaded library with our soname is the wheel's own, unless the program has loaded another one
    before."""
    try:
        import utracefs.producer._emit  # noqa: F401
    except ImportError as error:
        if "libutracefs" not in str(error) and "UTRACEFS_BINDING" not in str(error):
            raise
        text = f"events are off, since libutracefs cannot be used: {error}"
        try:
            warn(text, RuntimeWarning, stacklevel=2)
        except RuntimeWarning:  # the program makes warnings exceptions; this is no reason to fail
            _print(text)
        return False
    return True


def _print(text: str) -> None:
    try:
        fstat(sys.stderr.fileno())  # text that stays in its buffer would change the exit status
        sys.stderr.write(f"utracefs: {text}\n")
    except (AttributeError, OSError, ValueError):  # none, closed, or full
        return


CAN_TRACE = _can_trace()
