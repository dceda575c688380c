"""Makes a patch of a mutable chunk durable: a new image by copy-on-write, then one commit of image and channel.

The operation holds its chunk meanwhile, so what is committed there changes only by its own doing; it does not end
before the drive has reported.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol

from esker.chunkserver.copy_on_write import Change, Copy, Pieces
from esker.chunkserver.engine.errors import CorruptRecord, DriveFailed, NoSpace
from esker.chunkserver.engine.image_group import ChannelRow
from esker.chunkserver.engine.image_record import (
    NO_WRITE,
    ChannelRecord,
    ImageRecord,
    channel_key,
)
from esker.chunkserver.engine.store import DriveStore
from esker.chunkserver.mutable_operations import MutableOperation, image_of, stored_image
from esker.chunkserver.pool import Region
from esker.craq import mutable_messages as craq
from esker.craq.patches import resulting_length, resulting_truncate_version
from esker.craq.replica import AnyEvent
from esker.runtime.counters import Counters
from esker.runtime.logging import get_logger
from esker.wire.limits import ALIGN_BYTES
from esker.wire.status import Status

log = get_logger("chunkserver.mutable")


class Whole(NamedTuple):
    """A verified image of another replica. Whoever has it drops the region."""

    region: Region
    length: int
    checksums: bytes
    truncate_version: int


class Runner(Protocol):
    """What is needed of the runner of mutable chunks."""

    def report(self, operation: MutableOperation, event: AnyEvent) -> None: ...


class Persist:
    """Of one drive. `submit` hands queued I/O to it."""

    def __init__(
        self, store: DriveStore, pieces: Pieces, counters: Counters, runner: Runner, submit: Callable[[], None]
    ) -> None:
        self._store = store
        self._images = store.images
        self._pieces = pieces
        self._counters = counters
        self._runner = runner
        self._submit = submit

    def persist(self, operation: MutableOperation, effect: craq.PersistPending) -> AnyEvent | None:
        """Performs the effect; its answer, where it is known at once."""
        update = operation.event
        assert isinstance(update, craq.Update)
        chunk = self._images.chunk(operation.record_key)
        expected = effect.expected
        if update.patch.kind is craq.PatchKind.REMOVE:
            truncate_version = 0 if expected is None else expected.truncate_version
            self._store_image(operation, effect, ImageRecord(effect.version, truncate_version=truncate_version))
            return None
        base = None if effect.full else chunk.committed
        if effect.full:
            assert expected is not None, "whole images come from the predecessor, who names what they are"
            change = Change(None, expected.length_bytes, 0, operation.payload)
        elif update.patch.kind is craq.PatchKind.WRITE:
            change = Change(
                base, resulting_length(image_of(base), update.patch), update.patch.offset, operation.payload
            )
        else:
            change = Change(base, update.patch.length_bytes)
        if expected is not None and expected.length_bytes != change.length:
            return craq.Persisted(effect.op, Status.CHECKSUM)
        slot = operation.slot
        assert slot is not None, "room is reserved before"

        def copied(status: Status, sums: bytes) -> None:
            if status is Status.OK and expected is not None and sums != expected.checksums:
                status = Status.CHECKSUM
            if status is not Status.OK:
                self._failed(operation, effect.op, status)
                return
            truncate_version = (
                resulting_truncate_version(image_of(base), update.patch)
                if expected is None
                else expected.truncate_version
            )
            image = ImageRecord(
                effect.version, change.length, sums, truncate_version, pages=slot.pages, slot=slot.number
            )
            try:
                self._store_image(operation, effect, image)
            except DriveFailed:
                self._failed(operation, effect.op, Status.IO_ERROR)

        Copy(self._images, self._pieces, change, slot, self._submit, copied).start()
        return None

    def _failed(self, operation: MutableOperation, op: int, status: Status) -> None:
        self._counters.add(f"mutable_copy_{status.name.lower()}")
        log.warning("a new image could not be made", drive=self._store.drive_id, status=status.name)
        self._runner.report(operation, craq.Persisted(op, status))

    def _store_image(self, operation: MutableOperation, effect: craq.PersistPending, image: ImageRecord) -> None:
        update = operation.event
        assert isinstance(update, craq.Update)
        row, before = self._channel_row(operation, update.origin, image)
        chain = operation.replica.chain
        image = image._replace(
            previous=effect.previous, chain_version=chain.version, slot_bytes=operation.slot_bytes, before=before
        )
        if update.origin is not None:
            origin = update.origin
            image = image._replace(client=origin.client, channel=origin.channel, sequence=origin.sequence)
        slot = None if image.absent else operation.slot
        if slot is not None:
            operation.slot = None  # the store's from here on
        token = (operation, image)
        if effect.commit:
            self._images.replace(operation.record_key, image, row, slot, self._stored, token)
        else:
            self._images.pend(operation.record_key, image, row, slot, self._stored, token, clears=effect.replace)

    def _channel_row(
        self, operation: MutableOperation, origin: craq.Origin | None, image: ImageRecord
    ) -> tuple[ChannelRow | None, ChannelRecord]:
        """The channel's entry after this write, and the one before."""
        if origin is None:
            return None, NO_WRITE
        chain_id = operation.replica.chain.chain_id
        try:
            before = self._images.channel(chain_id, origin.client, origin.channel)
        except CorruptRecord:
            before = None  # the predecessor, or the client's next write, settles it
        key = channel_key(chain_id, origin.client, origin.channel)
        row = (key, ChannelRecord(origin.sequence, image.version, image.length))
        return row, before if before is not None and before.sequence < origin.sequence else NO_WRITE

    def _stored(self, token: tuple[MutableOperation, ImageRecord], status: Status) -> None:
        operation, image = token
        self._runner.report(operation, craq.Persisted(operation.op, status, image_of(image)))

    # A damaged image

    def mend(self, record_key: bytes, version: int, whole: Whole, done: Callable[[bool], None]) -> None:
        """Puts a verified copy in the place of the image of that version, if that is the same but for the damage.

        `done` is told whether it is there now. No lock is needed: the index takes it only while the version is.
        """
        damaged = stored_image(self._images.chunk(record_key), version)
        if damaged is None or (damaged.length, damaged.checksums) != (whole.length, whole.checksums):
            whole.region.drop()
            done(False)
            return
        size = damaged.pages * ALIGN_BYTES
        try:
            slot = self._store.allocate(size, size, reserve=True)
        except (NoSpace, DriveFailed):
            whole.region.drop()
            done(False)
            return

        def mended(_: None, status: Status) -> None:
            if status is Status.OK:
                self._counters.add("mutable_mended")
            done(status is Status.OK)

        def copied(status: Status, sums: bytes) -> None:
            whole.region.drop()
            if status is Status.OK and sums == whole.checksums:
                self._images.mend(record_key, version, slot, mended, None)
            else:
                self._store.release(slot)
                done(False)

        change = Change(None, whole.length, 0, whole.region.view[: whole.length])
        Copy(self._images, self._pieces, change, slot, self._submit, copied).start()
