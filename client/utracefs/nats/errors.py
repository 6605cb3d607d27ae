"""Errors of the NATS client.

OSError
├── ConnectionError      the connection is over; the next call connects again
│   └── WireError        the server broke the protocol
├── PermissionError      the server refuses the login, or a subject
└── TimeoutError         no answer in time; whether the server acted is unknown
ApiError                 JetStream answered with an error
├── NotFound             there is no such stream, consumer, message or key
├── WrongLastSequence    another message was stored since
└── NoResponders         nobody serves the subject: no JetStream, or no such stream
"""

from typing import Final


class WireError(ConnectionError):
    """The server broke the protocol, or a limit of wire.py."""


class ApiError(Exception):
    """err_code: the server's number of this error, 0: none."""

    def __init__(self, text: str, err_code: int = 0) -> None:
        super().__init__(text)
        self.err_code: Final = err_code


class NotFound(ApiError):
    pass


class WrongLastSequence(ApiError):
    pass


class NoResponders(ApiError):
    pass
