"""Errors of the wire boundary.

EskerError
├── ProtocolError        the peer sent what the protocol does not allow; the connection is closed
├── ConnectionFailed     no connection, or it broke: the outcome of what was under way is unknown
├── DeadlineExceeded     no answer in time; the outcome is unknown
├── RequestFailed        the peer answered the whole request with a status
└── UserError            the caller's mistake, in one line that says what to do
"""

from esker.wire.status import Status


class EskerError(Exception):
    """Base of all errors that esker raises on purpose."""


class ProtocolError(EskerError):
    """Bytes from the peer that the protocol does not allow."""


class ConnectionFailed(EskerError):
    """The peer cannot be reached, or went away."""


class DeadlineExceeded(EskerError):
    """No answer within the deadline."""


class RequestFailed(EskerError):
    """The peer refused the whole request."""

    def __init__(self, status: Status, message: str) -> None:
        super().__init__(f"{status.name}: {message}" if message else status.name)
        self.status = status
        self.message = message


class UserError(EskerError, ValueError):
    """Bad input or set-up; the message is for the user."""
