"""Stored images of mutable chunks read whole, into the worker's pool, and verified: for whoever passes them on."""

import errno
from collections.abc import Callable

from esker.chunkserver.engine.image_record import ImageRecord
from esker.chunkserver.engine.images import Images
from esker.chunkserver.pool import Region
from esker.wire.checksum import checksums
from esker.wire.limits import aligned
from esker.wire.status import Status

ReadWhole = Callable[[Status], None]
"""OK; CHECKSUM: it does not verify; IO_ERROR, CANCELLED."""


def read_whole(images: Images, image: ImageRecord, region: Region, done: ReadWhole) -> None:
    """Queues the read of `image`, which is not empty, into the beginning of `region`; in the same await-free stretch as
    its lookup."""
    view = region.view[: aligned(image.length)]

    def read(_: None, result: int) -> None:
        if result != len(view):
            done(Status.CANCELLED if result == -errno.ECANCELED else Status.IO_ERROR)
        elif checksums(view[: image.length]) != image.checksums:
            done(Status.CHECKSUM)
        else:
            done(Status.OK)

    images.read_part(image, 0, view, read, None)
