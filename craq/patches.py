"""What a patch makes of an image, as far as it can be said without the bytes. Pure."""

from esker.craq.mutable_messages import Image, Patch, PatchKind
from esker.wire.limits import CHUNK_BYTES_MAX
from esker.wire.status import Status


def resulting_length(base: Image | None, patch: Patch) -> int:
    """Bytes of the chunk after `patch`; `base` None: it is absent before."""
    if patch.kind is PatchKind.REMOVE:
        return 0
    if patch.kind is PatchKind.TRUNCATE:
        return patch.length_bytes
    return max(0 if base is None else base.length_bytes, patch.offset + patch.length_bytes)


def resulting_truncate_version(base: Image | None, patch: Patch) -> int:
    """The image's truncate version after `patch`: it never goes back."""
    return patch.truncate_version if base is None else max(base.truncate_version, patch.truncate_version)


def refused(base: Image | None, patch: Patch) -> Status | None:
    """Why `patch` has no place on `base`; None: it has."""
    if patch.kind is PatchKind.REMOVE:
        return Status.NOT_FOUND if base is None else None
    if base is not None and patch.truncate_version < base.truncate_version:
        return Status.CONDITION
    return Status.TOO_LARGE if resulting_length(base, patch) > CHUNK_BYTES_MAX else None
