"""An opened namespace: where a key's chunks are. Immutable but for the routes below it."""

from collections.abc import Sequence
from dataclasses import dataclass

from esker.client.chains import ChainRoutes
from esker.client.staging import Staging
from esker.client.workers import Workers
from esker.kvclient.arguments import checked_integer
from esker.wire.errors import UserError
from esker.wire.ids import block_objects
from esker.wire.limits import KEY_BYTES_MAX
from esker.wire.placement import Indexes, SlotTable, anchor_objects
from esker.wire.types import Namespace


@dataclass(frozen=True, slots=True)
class Keyspace:
    """A namespace, its slot table and the workers that hold it."""

    namespace: Namespace
    table: SlotTable
    routes: ChainRoutes
    workers: Workers
    staging: Staging

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

    def locate(self, keys: Sequence[bytes], start: int, anchor: bytes | None) -> tuple[list[bytes], Indexes]:
        """The object id of every key, and the index of the chain that holds its chunk 0.

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
        anchors = anchor_objects(objects, position, self.namespace.geometry.run_blocks, anchor_object)
        return objects, self.table.chain_indexes(anchors)


def _check_keys(keys: Sequence[bytes]) -> None:
    if len(keys) == 0:
        return
    lengths = [len(key) for key in keys]
    if min(lengths) < 1 or max(lengths) > KEY_BYTES_MAX:
        position = next(at for at, length in enumerate(lengths) if not 1 <= length <= KEY_BYTES_MAX)
        raise UserError(f"key {position} has {lengths[position]} bytes; allowed: 1 to {KEY_BYTES_MAX}")
