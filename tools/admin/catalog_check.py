"""Compares the catalog with the drives, and has the drives tell the catalog once more where the two differ.

The heads' records are the truth. The two sides are read page by page while the cluster works, so what differs at first
is only a suspicion: it is confirmed once the head has told everything that it had to tell, both sides were read again,
and the drive's side did not change meanwhile. A repair writes nothing itself: the head is asked to report the block
again, in order with its other reports, so that no block that changes at the same time is told wrong.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from esker.tools.admin.catalog_streams import Block, DriveSide, blocks_in, catalog_entries
from esker.tools.admin.link import ClusterLink, head_of
from esker.wire.admin_messages import BLOCK_PLACE, BLOCKS_MAX, CatalogGet, ReportBlocks, ReportBlocksReply
from esker.wire.errors import EskerError, RequestFailed
from esker.wire.messages import CatalogEntry, CatalogListReply, Method
from esker.wire.status import Status
from esker.wire.types import Chain, Namespace, Routing

CONFIRM_ATTEMPTS = 3
SETTLE_TIMEOUT_S = 10.0
"""How long a head may take to tell the catalog what it has to tell."""
SETTLE_LOOK_S = 0.05
PROGRESS_EVERY = 1000
EXAMPLES_MAX = 5

Progress = Callable[[int, int], None]
"""Takes how many blocks were compared and how many differed."""


@dataclass(slots=True)
class NamespaceCheck:
    """What came of one namespace."""

    name: str
    namespace_id: int
    blocks: int = 0
    """On the drives that answered."""
    missing: int = 0
    """On a drive, not in the catalog."""
    extra: int = 0
    """In the catalog, not on a drive."""
    differing: int = 0
    repaired: int = 0
    changing: int = 0
    """Differed each time that they were looked at, but never twice in the same way."""
    examples: list[str] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)
    """What could not be compared, and why."""

    @property
    def wrong(self) -> int:
        """Differences that were found."""
        return self.missing + self.extra + self.differing


@dataclass(slots=True)
class _Suspect:
    """A block that differs, as it seemed."""

    object_id: bytes
    chain_id: int
    version: int
    """That the catalog has; 0: none."""


class NamespaceChecker:
    """Checks one namespace."""

    def __init__(
        self, link: ClusterLink, routing: Routing, namespace: Namespace, *, repair: bool, progress: Progress
    ) -> None:
        self._link = link
        self._namespace = namespace
        self._repair = repair
        self._progress = progress
        self._workers = {worker.drive_id: worker for worker in routing.workers}
        wanted = self._chain_ids(routing)
        self._chains = {chain.chain_id: chain for chain in routing.chains if chain.chain_id in wanted}
        self._drives = DriveSide(link, namespace.namespace_id, list(self._chains.values()), self._workers)
        self._suspects: list[_Suspect] = []
        self.result = NamespaceCheck(namespace.name, namespace.namespace_id)

    @property
    def failures(self) -> dict[int, str]:
        """Chains that could not be compared to their end, and why."""
        return self._drives.failures

    async def run(self) -> NamespaceCheck:
        """Compares everything that can be. Raises `EskerError` where the metadata servers do not answer."""
        compared = 0
        async with (
            aclosing(self._drives.blocks()) as on_drives,
            aclosing(catalog_entries(self._link, self._namespace.namespace_id)) as in_catalog,
        ):
            block = await anext(on_drives, None)
            entry = await anext(in_catalog, None)
            while block is not None or entry is not None:
                object_id = min(side.object_id for side in (block, entry) if side is not None)
                copies = []
                while block is not None and block.object_id == object_id:
                    copies.append(block)
                    block = await anext(on_drives, None)
                told = None
                if entry is not None and entry.object_id == object_id:
                    told = entry
                    entry = await anext(in_catalog, None)
                self._compare(object_id, copies, told)
                if len(self._suspects) >= BLOCKS_MAX:
                    await self._settle_suspects()
                compared += 1
                if compared % PROGRESS_EVERY == 0:
                    self._progress(compared, self.result.wrong)
        await self._settle_suspects()
        self._progress(compared, self.result.wrong)
        self.result.unchecked += [self._drives.failures[chain_id] for chain_id in sorted(self._drives.failures)]
        return self.result

    def _chain_ids(self, routing: Routing) -> set[int]:
        """The chains of every version of the namespace's table: none of its blocks can be elsewhere."""
        tables = [table for table in routing.tables if table.table_id == self._namespace.table_id]
        return {chain_id for table in tables for chain_id in table.chain_ids}

    def _compare(self, object_id: bytes, copies: Sequence[Block], entry: CatalogEntry | None) -> None:
        self.result.blocks += bool(copies)
        if entry is not None and any(copy.agrees(entry) for copy in copies):
            return
        version = entry.version if entry is not None else 0
        if copies:
            newest = max(copies, key=lambda copy: copy.version)
            self._suspects.append(_Suspect(object_id, newest.chain_id, version))
        elif entry is not None and entry.chain_id in self._chains:
            if entry.chain_id not in self._drives.failures:
                self._suspects.append(_Suspect(object_id, entry.chain_id, version))
        elif self._chains and not self._drives.failures:
            # The catalog does not know the chain, and no chain has the block: any head may say so.
            self._suspects.append(_Suspect(object_id, min(self._chains), version))

    async def _settle_suspects(self) -> None:
        suspects, self._suspects = self._suspects, []
        by_chain: dict[int, list[_Suspect]] = {}
        for suspect in suspects:
            by_chain.setdefault(suspect.chain_id, []).append(suspect)
        for chain_id, group in by_chain.items():
            chain = self._chains[chain_id]
            try:
                await self._settle(chain, group)
            except EskerError as error:
                reason = f"{len(group)} blocks of chain {chain_id}: {error}"
                self._drives.failures.setdefault(chain_id, reason)

    async def _settle(self, chain: Chain, suspects: list[_Suspect]) -> None:
        """Confirms the suspects of one chain, and repairs those that were right."""
        open_suspects = suspects
        for _ in range(CONFIRM_ATTEMPTS):
            before = await self._ask(chain, open_suspects)
            await self._told_everything(chain, before.reports)
            entries = await self._entries(open_suspects)
            after = await self._ask(chain, open_suspects)
            was, now = _by_object(before), _by_object(after)
            confirmed: list[_Suspect] = []
            unclear: list[_Suspect] = []
            for suspect in open_suspects:
                block, entry = now.get(suspect.object_id), entries.get(suspect.object_id)
                if block is None and entry is None:
                    continue
                if block is not None and entry is not None and block.agrees(entry):
                    continue
                suspect.version = entry.version if entry is not None else 0
                (confirmed if was.get(suspect.object_id) == block else unclear).append(suspect)
            await self._found(chain, confirmed, now, entries)
            if not unclear:
                return
            open_suspects = unclear
        self.result.changing += len(open_suspects)

    async def _found(
        self,
        chain: Chain,
        confirmed: list[_Suspect],
        blocks: dict[bytes, Block],
        entries: dict[bytes, CatalogEntry],
    ) -> None:
        for suspect in confirmed:
            block, entry = blocks.get(suspect.object_id), entries.get(suspect.object_id)
            kind = "missing" if entry is None else "extra" if block is None else "differing"
            setattr(self.result, kind, getattr(self.result, kind) + 1)
            if len(self.result.examples) < EXAMPLES_MAX:
                self.result.examples.append(f"{kind} {suspect.object_id.hex()} on chain {chain.chain_id}")
        if not confirmed or not self._repair:
            return
        told = await self._ask(chain, confirmed, report=True)
        await self._told_everything(chain, told.reports)
        blocks, entries = _by_object(told), await self._entries(confirmed)
        for suspect in confirmed:
            block, entry = blocks.get(suspect.object_id), entries.get(suspect.object_id)
            agree = entry is None if block is None else entry is not None and block.agrees(entry)
            self.result.repaired += agree

    async def _ask(self, chain: Chain, suspects: Sequence[_Suspect], *, report: bool = False) -> ReportBlocksReply:
        """What the chain's head has of these blocks."""
        head = head_of(chain, self._workers)
        assert head is not None, "its blocks came from there"
        places = b"".join(BLOCK_PLACE.pack(each.object_id, chain.chain_id, each.version) for each in suspects)
        message = ReportBlocks(self._namespace.namespace_id, places, report)
        deadline = asyncio.get_running_loop().time() + SETTLE_TIMEOUT_S
        while True:
            try:
                return await self._link.worker(head, Method.REPORT_BLOCKS, message, ReportBlocksReply)
            except RequestFailed as error:
                if error.status is not Status.BUSY or asyncio.get_running_loop().time() >= deadline:
                    raise
            await asyncio.sleep(SETTLE_LOOK_S)

    async def _told_everything(self, chain: Chain, reports: int) -> None:
        """Waits until the head is rid of its first `reports` entries for the catalog."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + SETTLE_TIMEOUT_S
        nothing = [_Suspect(bytes(16), chain.chain_id, 0)]
        while (await self._ask(chain, nothing)).reports_done < reports:
            if loop.time() >= deadline:
                raise EskerError(f"its drive did not tell the catalog what it had to within {SETTLE_TIMEOUT_S:g} s")
            await asyncio.sleep(SETTLE_LOOK_S)

    async def _entries(self, suspects: Sequence[_Suspect]) -> dict[bytes, CatalogEntry]:
        message = CatalogGet(self._namespace.namespace_id, b"".join(each.object_id for each in suspects))
        reply = await self._link.meta(Method.CATALOG_GET, message, CatalogListReply)
        return {entry.object_id: entry for entry in reply.entries}


def _by_object(reply: ReportBlocksReply) -> dict[bytes, Block]:
    return {block.object_id: block for block in blocks_in(reply.rows, reply.keys)}
