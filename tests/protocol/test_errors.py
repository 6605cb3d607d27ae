"""Text and errno of an error."""

import errno

from utracefs_protocol.errors import ProtocolError, TraceError


def test_trace_error() -> None:
    error = TraceError(errno.EADDRINUSE, "event 'x' has other fields")
    assert (error.errno, error.text, str(error), error.errno_name) == (
        errno.EADDRINUSE,
        "event 'x' has other fields",
        "event 'x' has other fields",
        "EADDRINUSE",
    )
    assert repr(error) == "TraceError(98, \"event 'x' has other fields\")"
    assert TraceError(9999, "?").errno_name == "9999"


def test_protocol_error_is_a_trace_error() -> None:
    assert isinstance(ProtocolError(errno.EPROTO, "x"), TraceError)
