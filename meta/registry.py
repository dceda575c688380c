"""Which metadata servers there are: each keeps a record of itself, so that clients and workers learn them all.

A server counts its record's beats up while it lives; the manager removes a record that it has seen unchanged for
`SERVER_LIFE_S` on its own clock. The routing version moves only when a server comes or goes. A server whose record was
removed while it was cut off puts it back with its next beat.
"""

from collections.abc import Callable

from esker.craq.lease import Sighting, sighted
from esker.meta import keys
from esker.meta.manager import Manager, NotManager
from esker.meta.records import MetaServer, pack, unpack
from esker.meta.routing import bump_version, read_all
from esker.meta.store.base import Store, Transaction
from esker.meta.store.errors import StoreError
from esker.runtime.logging import get_logger
from esker.wire.limits import CLOCK_SKEW

log = get_logger("meta.registry")

BEAT_INTERVAL_S = 1.0
BEAT_TIMEOUT_S = 1.0
SERVER_LIFE_S = 5.0 * (1 + CLOCK_SKEW)


class Registry:
    """One server's record, and its eye on the others."""

    def __init__(self, store: Store, incarnation: str, clock: Callable[[], float]) -> None:
        self._store = store
        self._own = MetaServer("", incarnation, 0)
        self._clock = clock
        self._seen: dict[str, Sighting] = {}

    async def register(self, address: str) -> None:
        """Make this server known at `address`, unless that is empty. Raises `StoreError`.

        Over an exclusive store no other can be left.
        """
        self._own = MetaServer(address, self._own.incarnation, 0)

        async def body(transaction: Transaction) -> None:
            known = {server.address for server in await read_all(transaction, keys.meta_servers(), MetaServer)}
            wanted = {self._own.address} - {""}
            gone = known - wanted if self._store.exclusive else set()
            for address in gone:
                transaction.clear(keys.meta_server(address))
            if wanted:
                transaction.set(keys.meta_server(self._own.address), pack(self._own))
            if gone or wanted - known:
                bump_version(transaction)

        await self._store.run(body, what="registration of this metadata server")

    async def beat(self) -> None:
        """Show that this server lives. Raises `StoreError`."""

        async def body(transaction: Transaction) -> None:
            key = keys.meta_server(self._own.address)
            stored = await transaction.get(key)
            found = None if stored is None else unpack(MetaServer, key, stored)
            beats = found.beats + 1 if found is not None else 0
            transaction.set(key, pack(MetaServer(self._own.address, self._own.incarnation, beats)))
            if found is None:
                bump_version(transaction)

        if self._own.address and not self._store.exclusive:
            await self._store.run(body, what="beat of this metadata server", timeout_s=BEAT_TIMEOUT_S)

    async def withdraw(self) -> None:
        """This server stops. Quietly gives up where the store does not answer: the manager sees to it then."""

        async def body(transaction: Transaction) -> None:
            key = keys.meta_server(self._own.address)
            stored = await transaction.get(key)
            if stored is not None and unpack(MetaServer, key, stored).incarnation == self._own.incarnation:
                transaction.clear(key)
                bump_version(transaction)

        if not self._own.address or self._store.exclusive:
            return
        try:
            await self._store.run(body, what="withdrawal of this metadata server", timeout_s=BEAT_TIMEOUT_S)
        except StoreError as error:
            log.info("this server's record stays until the manager removes it", reason=str(error))

    async def remove_silent(self, manager: Manager) -> None:
        """The manager's duty: remove the records of servers that are gone. Raises `StoreError`."""

        async def read(transaction: Transaction) -> list[MetaServer]:
            return await read_all(transaction, keys.meta_servers(), MetaServer)

        servers = await self._store.run(read, what="reading the metadata servers", timeout_s=BEAT_TIMEOUT_S)
        now_s = self._clock()
        self._seen = {server.address: sighted(self._seen.get(server.address), server, now_s) for server in servers}
        silent = [
            server
            for server in servers
            if now_s - self._seen[server.address].since_s >= SERVER_LIFE_S and server.address != self._own.address
        ]
        if not silent or not manager.may_declare_dead:
            return

        async def remove(transaction: Transaction) -> None:
            for server in silent:
                key = keys.meta_server(server.address)
                if await transaction.get(key) == pack(server):
                    transaction.clear(key)
                    bump_version(transaction)

        try:
            await manager.transact(remove, what="removal of metadata servers", timeout_s=BEAT_TIMEOUT_S)
        except NotManager:
            return
        for server in silent:
            self._seen.pop(server.address)  # If it comes back, perhaps with the same record, it is alive.
            log.warning("a metadata server is gone", address=server.address)
