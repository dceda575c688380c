"""Namespaces and chain tables of a cluster in memory (`fake.py`): what a metadata server says of them."""

import msgspec

from esker.wire.errors import RequestFailed
from esker.wire.messages import NamespaceOpen, NamespaceReply
from esker.wire.placement import build_slot_table
from esker.wire.status import Status
from esker.wire.types import ChainTable, Namespace

SALT = bytes(range(32))
TABLE_ID, TABLE_VERSION = 1, 1


class FakeNamespaces:
    """Namespaces over one chain table, which may get newer versions (`expand`). `chains`: in the first version."""

    def __init__(self, chains: int) -> None:
        self.not_ready = 0
        """So many times a namespace cannot be opened because drives are missing."""
        self.opened = 0
        """How many times one was."""
        self._tables = [_table(TABLE_VERSION, chains)]
        self._namespaces: dict[str, Namespace] = {}
        self._last_id = 0

    @property
    def tables(self) -> tuple[ChainTable, ...]:
        """All versions of the chain table."""
        return tuple(self._tables)

    def expand(self, chains: int) -> None:
        """From now on blocks are put over so many chains; those that are there stay where they are."""
        newest = self._tables[-1].version
        self._tables.append(_table(newest + 1, chains))
        for name, namespace in self._namespaces.items():
            self._namespaces[name] = msgspec.structs.replace(
                namespace,
                table_version=newest + 1,
                older_versions=(namespace.table_version, *namespace.older_versions),
                layout_epoch=namespace.layout_epoch + 1,
            )

    def forget(self, name: str) -> None:
        """The namespace is removed; one of that name may be made again."""
        del self._namespaces[name]

    async def open(self, message: NamespaceOpen) -> NamespaceReply:
        """Handles NAMESPACE_OPEN."""
        if self.not_ready:
            self.not_ready -= 1
            raise RequestFailed(Status.NOT_READY, "2 of 4 drives have joined")
        self.opened += 1
        geometry = message.geometry.resolved()
        found = self._namespaces.get(message.name)
        if found is None:
            if not message.create:
                raise RequestFailed(Status.NOT_FOUND, f"there is no namespace {message.name!r}")
            number = self._last_id = self._last_id + 1
            version = self._tables[-1].version
            found = Namespace(number, message.name, geometry, SALT, TABLE_ID, version, mode=message.mode)
            self._namespaces[message.name] = found
        if (found.geometry, found.mode) != (geometry, message.mode):
            has, asked = (found.geometry, found.mode), (geometry, message.mode)
            raise RequestFailed(Status.GEOMETRY, f"the namespace has {has}, you asked {asked}")
        newest, *older = [self._slots(version) for version in (found.table_version, *found.older_versions)]
        return NamespaceReply(found, newest, tuple(older))

    def _slots(self, version: int) -> bytes:
        table = next(table for table in self._tables if table.version == version)
        return build_slot_table(table.chain_ids, table.weights)


def _table(version: int, chains: int) -> ChainTable:
    return ChainTable(TABLE_ID, version, tuple(range(1, chains + 1)), (1,) * chains)
