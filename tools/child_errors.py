"""What a parent raises when a child process of the tools did not do its part."""

from esker.wire.errors import EskerError


class ChildEnded(EskerError):
    """The child ended where an answer was due."""

    def __init__(self, name: str, status: int) -> None:
        super().__init__(f"{name} ended with status {status} before it answered")
        self.status = status
