"""Which namespaces this worker serves: all but those that it knows to be removed.

Namespace ids are given in order and never twice, so an id up to the last one of the cluster map that is not in the map
is a removed namespace, and one above it is newer than the map. Workers that never saw a map with namespaces serve all.
"""

from esker.wire.errors import RequestFailed
from esker.wire.ids import FILE_SPACE
from esker.wire.status import Status
from esker.wire.types import Routing


class Spaces:
    """As of the newest cluster map."""

    def __init__(self) -> None:
        self._last = 0
        self._live: frozenset[int] = frozenset()

    def take(self, routing: Routing) -> None:
        """The cluster map is this one now."""
        self._last = routing.namespace_last
        self._live = frozenset(routing.namespaces)

    def removed(self, space: int) -> bool:
        """Whether the namespace is known to be removed."""
        return space <= self._last and space not in self._live and space != FILE_SPACE

    def check(self, space: int) -> None:
        """Raises `RequestFailed` (NAMESPACE_REMOVED) for a removed namespace."""
        if self.removed(space):
            raise RequestFailed(
                Status.NAMESPACE_REMOVED, f"namespace {space} has been removed; open one of that name again"
            )
