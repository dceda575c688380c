"""An opened namespace: what its keys are called on the drives, and the layouts in which their chunks lie.

After an expansion there are several layouts: blocks are put by the newest; a lookup asks at all of them in one round
trip, a read goes on to an older one where a newer one has nothing, and a removal visits all. Blocks are immutable, so
one that lies in two layouts is the same in both.
"""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace

from esker.client.arguments import checked_integer
from esker.client.chains import ChainRoutes
from esker.client.staging import Staging
from esker.client.workers import Workers
from esker.kvclient.layout import Layout, Place
from esker.wire.errors import UserError
from esker.wire.ids import block_objects
from esker.wire.limits import KEY_BYTES_MAX
from esker.wire.messages import NamespaceReply
from esker.wire.placement import SlotTable, anchor_objects
from esker.wire.types import Namespace, NamespaceMode


class Keyspace:
    """A namespace, its layouts and the workers that hold it. Raises `EskerError` where a table is not in the map."""

    def __init__(self, opened: NamespaceReply, workers: Workers, staging: Staging) -> None:
        self.namespace: Namespace = opened.namespace
        self.workers = workers
        self.staging = staging
        self._layouts: dict[int, Layout] = {}
        self.adopt(opened)

    @property
    def space(self) -> int:
        """The namespace's id, the first part of its chunk ids."""
        return self.namespace.namespace_id

    @property
    def unit(self) -> int:
        """Longest chunk, bytes: longer values are striped."""
        return self.namespace.geometry.stripe_unit_bytes

    @property
    def block_bytes_max(self) -> int:
        """Longest value, bytes."""
        return self.namespace.geometry.block_bytes_max

    @property
    def striped(self) -> bool:
        """Whether values may have several chunks."""
        return self.block_bytes_max > self.unit

    @property
    def cache(self) -> bool:
        """Whether blocks are on one drive each, and others stand in for a dead one."""
        return self.namespace.mode is NamespaceMode.CACHE

    @property
    def simple(self) -> bool:
        """Whether every block can be at one place only."""
        return len(self._layouts) == 1 and not self.cache

    def adopt(self, opened: NamespaceReply) -> None:
        """The namespace is laid out so from now on. Calls under way go on as they began."""
        namespace = opened.namespace
        layouts: dict[int, Layout] = {}
        versions = (namespace.table_version, *namespace.older_versions)
        for version, slots in zip(versions, (opened.placement, *opened.older), strict=True):
            known = self._layouts.get(version)
            if known is None:
                routes = ChainRoutes(self.workers, namespace.table_id, version, waits=not self.cache)
                table = SlotTable(slots, routes.chain_count)
                known = Layout(routes, table, cache=self.cache, clock=asyncio.get_running_loop().time)
            layouts[version] = known
        self.namespace, self._layouts = namespace, layouts

    @property
    def newest(self) -> Layout:
        """The layout in which blocks are put."""
        return self._layouts[self.namespace.table_version]

    def places(self) -> Iterator[Place]:
        """Where blocks may be, the likeliest first."""
        for layout in self._layouts.values():
            place = layout.now()
            yield place if len(self._layouts) == 1 else replace(place, sole=False)
            yield from layout.others()

    def homes(self) -> Iterator[Place]:
        """Where blocks are when the drives that are dead now are back."""
        if self.cache:
            for layout in self._layouts.values():
                yield layout.home()

    def locate(self, keys: Sequence[bytes], start: int, anchor: bytes | None) -> tuple[list[bytes], bytes]:
        """The object id of every key, and the column of its anchor's.

        `start` is the position of the first key in its prefix, `anchor` the key that anchors it where it lies inside
        a run. Raises `UserError` for keys of a length that is not allowed, and where an anchor is missing.
        """
        salt = self.namespace.salt
        try:
            _check_keys(keys)
            objects = block_objects(keys, salt)
        except (TypeError, BufferError):
            raise UserError(f"keys are bytes of 1 to {KEY_BYTES_MAX}") from None
        anchor_object = None
        if anchor is not None:
            if not isinstance(anchor, bytes) or not 1 <= len(anchor) <= KEY_BYTES_MAX:
                raise UserError(f"anchor is a key: bytes of 1 to {KEY_BYTES_MAX}")
            anchor_object = block_objects([anchor], salt)[0]
        position = start if type(start) is int else checked_integer(start, "start")
        return objects, anchor_objects(objects, position, self.namespace.geometry.run_blocks, anchor_object)


def _check_keys(keys: Sequence[bytes]) -> None:
    if len(keys) == 0:
        return
    lengths = [len(key) for key in keys]
    if min(lengths) < 1 or max(lengths) > KEY_BYTES_MAX:
        position = next(at for at, length in enumerate(lengths) if not 1 <= length <= KEY_BYTES_MAX)
        raise UserError(f"key {position} has {lengths[position]} bytes; allowed: 1 to {KEY_BYTES_MAX}")
