"""Nodes that also hold mutable chunks: the effects of `craq/mutable_messages.py`, on a simulated drive."""

from collections.abc import Callable, Iterator
from typing import Any

from esker.chunkserver.lease import Lease
from esker.craq import messages as shared
from esker.craq import mutable_messages as craq
from esker.craq.mutable_messages import PatchKind
from esker.wire.limits import CLOCK_SKEW
from esker.wire.status import Status
from esker.wire.types import Chain

from .mutable_drive import ChannelKey, MutableDrive, Slot, image_of, patched
from .nodes import Node, Operation, World
from .resyncs import Resync

MUTABLE_CHUNKS = tuple(b"m" * 23 + bytes([number]) for number in range(2))
RECOVER_AFTER_S = 0.1


class MutableNode(Node):
    """The images survive a crash; a transaction under way may have become durable or not."""

    def __init__(self, world: World, drive: str) -> None:
        super().__init__(world, drive)
        self.mutable = MutableDrive()
        self.rate = 1 + world.random.uniform(-CLOCK_SKEW, CLOCK_SKEW)
        """Seconds of its clock in a second of the manager's."""
        self.lease = Lease(self._clock)
        self._transactions: list[Callable[[], None]] = []
        self._recovering: set[bytes] = set()
        self._cleared_in = (0, 0)

    def _clock(self) -> float:
        return self._world.now_s * self.rate

    def renew(self, lease: Lease, sent_s: float, term: int, withheld: tuple[tuple[int, int], ...]) -> None:
        """A manager acknowledged the heartbeat that was sent then."""
        lease.renew(sent_s, term, withheld)

    def slots(self) -> Iterator[Slot]:
        """All that is stored of mutable chunks."""
        yield from self.mutable.committed.values()
        for held in self.mutable.pending.values():
            yield held.slot

    # Lives and chains

    def start(self) -> None:
        super().start()
        self.lease = Lease(self._clock)
        self._recovering.clear()
        self._look_for_pendings()

    def crash(self) -> None:
        for transaction in self._transactions:
            if self._random.random() < 0.5:
                transaction()
        self._transactions.clear()
        super().crash()

    def told(self, chain: Chain) -> None:
        machine = self.machine
        assert machine is not None
        if chain.version > self.chain.version:
            super().told(chain)
            self._clear_channels()
            self._look_for_pendings()

    def _clear_channels(self) -> None:
        machine = self.machine
        assert machine is not None
        version = machine.chain.version
        if machine.clears_channels and self._cleared_in != (self.lives, version):
            self._cleared_in = (self.lives, version)
            self._transaction("channels away", self.mutable.channels.clear, lambda: craq.ChannelsCleared(version))

    def _look_for_pendings(self) -> None:
        for chunk in list(self.mutable.pending):
            self._recover(chunk)

    def _recover(self, chunk: bytes) -> None:
        machine = self.machine
        if machine is None or not machine.recovers or chunk in self._recovering or chunk not in self.mutable.pending:
            return
        self._recovering.add(chunk)
        self.arrive(craq.Recover(0, machine.chain.version, chunk), lambda status, result: None)

    # The drive

    def _transaction(
        self,
        what: str,
        apply: Callable[[], None],
        report: Callable[[], Any],
        fails: Callable[[], Any] = lambda: None,
    ) -> None:
        """`fails` makes the report of a failure, if there is one."""
        self._transactions.append(apply)

        def done() -> Any:
            self._transactions.remove(apply)
            failure = fails()
            if failure is not None:
                return failure
            apply()
            return report()

        self.later(f"writes {what}", done)

    def _LookupMutable(self, effect: craq.LookupMutable) -> None:
        def looked() -> craq.Looked | None:
            operation = self.operations.get(effect.op)
            if operation is None:
                return None
            chunk, origin = operation.event.chunk, getattr(operation.event, "origin", None)
            slot, held = self.mutable.committed.get(chunk), self.mutable.pending.get(chunk)
            machine = self.machine
            assert machine is not None
            return craq.Looked(
                effect.op,
                None if slot is None else slot.image,
                None if held is None else held.pending,
                None if origin is None else self.mutable.channels.get((origin.client, origin.channel)),
                self.lease.live(machine.chain.chain_id, machine.chain.version),
            )

        self.later(f"looks for {effect.op}", looked)

    def _ReserveImage(self, effect: craq.ReserveImage) -> None:
        granted = not self.full or (effect.use_reserve and self._random.random() < 0.5)
        self.later(f"reserves for {effect.op}", lambda: shared.Reserved(effect.op, granted))

    def _PersistPending(self, effect: craq.PersistPending) -> None:
        op, event, payload = effect.op, self.operations[effect.op].event, self.operations[effect.op].payload
        base = None if effect.replace else self.mutable.committed.get(event.chunk)
        if effect.full:
            assert effect.expected is not None
            slot = _whole(effect.expected, payload)
        elif base is not None and event.patch.kind is not PatchKind.REMOVE and not self._verifies(base):
            self.later(f"reads for {op}", lambda: craq.Persisted(op, Status.CHECKSUM))
            return
        else:
            slot = patched(base, event.patch, payload, effect.version)
        if effect.expected not in (None, slot.image):
            self.later(f"reads for {op}", lambda: craq.Persisted(op, Status.CHECKSUM))
            return

        def apply() -> None:
            self.mutable.persist(
                event.chunk, slot, effect.previous, event.origin, commit=effect.commit, replace=effect.replace
            )
            self._persisted(event, slot.image, event.origin, commit=effect.commit)

        def fails() -> craq.Persisted | None:
            if self.full and self._random.random() < 0.2:
                return craq.Persisted(op, Status.NO_SPACE)
            if self._world.faults and self._random.random() < 0.005:
                return craq.Persisted(op, Status.IO_ERROR)
            return None

        self._transaction(f"an image for {op}", apply, lambda: craq.Persisted(op, Status.OK, slot.image), fails)

    def _verifies(self, base: Slot) -> bool:
        """Whether the base of a copy on write has its checksums."""
        return not base.damaged

    def _persisted(self, event: craq.Update, image: craq.Image, origin: craq.Origin | None, *, commit: bool) -> None:
        machine = self.machine
        committed = commit and machine is not None and not machine.syncing
        self._world.persisted(self, event.chunk, image, origin, committed=committed)  # type: ignore[attr-defined]

    def _CommitPending(self, effect: craq.CommitPending) -> None:
        chunk = self.operations[effect.op].event.chunk

        def apply() -> None:
            pending = self.mutable.pending[chunk].pending
            self.mutable.commit(chunk, effect.version)
            self._world.persisted(self, chunk, pending.image, pending.origin, committed=True)  # type: ignore[attr-defined]

        self._transaction(f"a commit for {effect.op}", apply, lambda: craq.Committed(effect.op))

    def _DiscardPending(self, effect: craq.DiscardPending) -> None:
        chunk = self.operations[effect.op].event.chunk
        self._transaction(
            f"a discard for {effect.op}",
            lambda: self.mutable.discard(chunk, effect.version),
            lambda: craq.Discarded(effect.op),
        )

    def _RepairImage(self, effect: craq.RepairImage) -> None:
        source, chunk = self._world.nodes[effect.drive], self.operations[effect.op].event.chunk
        assert isinstance(source, MutableNode)

        def repaired() -> craq.Repaired:
            theirs, own = source.mutable.find(chunk, effect.version), self.mutable.find(chunk, effect.version)
            if source.machine is None or theirs is None or own is None or theirs.damaged:
                return craq.Repaired(effect.op, False)
            own.mend(theirs.data)
            return craq.Repaired(effect.op, True)

        self.later(f"writes what it repairs for {effect.op}", repaired)

    # The others

    def misses(self, drive: str) -> bool:
        return (drive, self.drive) in self._world.blocked  # type: ignore[attr-defined]

    def _ForwardUpdate(self, effect: craq.ForwardUpdate) -> None:
        assert self.machine is not None
        version, named = self.machine.chain.version, effect.named

        def send() -> shared.Unreadable | None:
            operation = self.operations.get(effect.op)
            if operation is None:
                return None  # it ended while the image was being read
            patch, payload = _patch_of(named, operation), operation.payload
            if named.full:
                slot = (
                    Slot(named.image, b"")
                    if named.image.absent
                    else self.mutable.find(operation.event.chunk, named.image.version)
                )
                if slot is None or slot.image != named.image:
                    self._world.fail(f"{self.drive} sends an image that it does not have: {effect}")
                if slot.damaged:
                    return shared.Unreadable(effect.op)
                payload = slot.data
            update = craq.Update(0, version, operation.event.chunk, patch, effect.origin, named)
            self._link(effect.successor).send(effect.op, update, payload)
            return None

        if named.full:
            self.later(f"reads for {effect.op}", send)
        else:
            send()

    def _QueryVersion(self, effect: craq.QueryVersion) -> None:
        assert self.machine is not None
        query = craq.VersionQuery(0, self.machine.chain.version, self.operations[effect.op].event.chunk)
        self._link(effect.tail).send(effect.op, query, reports=_version_known)

    def _ServeImage(self, effect: craq.ServeImage) -> None:
        operation = self.operations[effect.op]
        chunk, image = operation.event.chunk, effect.image
        if image is None:
            operation.answer(Status.OK, None)
            return
        slot = self.mutable.pending[chunk].slot if effect.pending else self.mutable.committed[chunk]
        if slot.image != image:
            self._world.fail(f"{self.drive} serves an image that it does not have: {effect}")
        if slot.damaged:
            operation.answer(Status.CHECKSUM, None)
        else:
            operation.answer(Status.OK, slot.data)

    def _AnswerMutable(self, effect: craq.AnswerMutable) -> None:
        self._world.note(f"{self.drive}: {effect}")
        self.operations[effect.op].answer(effect.status, effect)

    def _Ended(self, effect: craq.Ended) -> None:
        chunk = self.operations.pop(effect.op).event.chunk
        self._recovering.discard(chunk)
        self._clear_channels()
        if effect.pending:
            self.after(RECOVER_AFTER_S, lambda: self._recover(chunk))


class MutableResync(Resync):
    """Also of mutable chunks and of channels."""

    def _read_own(self) -> None:
        own = self._node.mutable  # type: ignore[attr-defined]
        self._images = {chunk: slot.image for chunk, slot in own.committed.items()}
        self._held = set(own.pending)
        super()._read_own()

    def _read_theirs(self) -> None:
        theirs = self._target.mutable  # type: ignore[attr-defined]
        if self._target.ready(self.version):
            images = {chunk: slot.image for chunk, slot in theirs.committed.items()}
            self._left |= self._held | theirs.pending.keys()
            self._left |= {chunk for chunk in self._images | images if self._images.get(chunk) != images.get(chunk)}
        super()._read_theirs()

    def _look(self) -> None:
        if not self._left:
            # Not before: what was under way when the chain changed is in the table only by now.
            self._then("channels", self._send_channels)

    def _channels(self) -> dict[ChannelKey, craq.ChannelEntry]:
        channels: dict[ChannelKey, craq.ChannelEntry] = self._node.mutable.settled_channels()  # type: ignore[attr-defined]
        return channels

    def _send_channels(self) -> None:
        if not self._target.ready(self.version) or not self._target.machine.channels_cleared:
            self._again("channels", self._send_channels)
            return
        self._target.mutable.merge_channels(self._channels())  # type: ignore[attr-defined]
        super()._look()

    def _sync(self, chunk: bytes) -> None:
        if chunk not in MUTABLE_CHUNKS:
            super()._sync(chunk)
        elif self._node.machine is not None:
            self._node.arrive(
                craq.SyncMutable(0, self.version, chunk), lambda status, result: self._mutable_synced(chunk, status)
            )

    def _mutable_synced(self, chunk: bytes, status: Status) -> None:
        # What cannot be read here must not be taken for brought in line: the other may have an older version.
        self._synced(chunk, Status.UNAVAILABLE if status is Status.CHECKSUM else status)


MutableNode.resync_type = MutableResync


def _whole(image: craq.Image, payload: bytes) -> Slot:
    if image.absent:
        return Slot(image, b"")
    return Slot(image_of(image.version, payload, image.truncate_version), payload)


def _patch_of(named: craq.Named, operation: Operation) -> craq.Patch:
    if not named.full:
        patch = operation.event.patch
        assert isinstance(patch, craq.Patch)
        return patch
    kind = PatchKind.REMOVE if named.image.absent else PatchKind.WRITE
    return craq.Patch(kind, 0, named.image.length_bytes, named.image.truncate_version)


def _version_known(op: int, status: Status, result: craq.AnswerMutable | None) -> craq.VersionKnown:
    return craq.VersionKnown(op, status, 0 if result is None else result.version)
