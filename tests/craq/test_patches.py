"""What a patch makes of an image."""

import pytest

from esker.craq import patches
from esker.craq.mutable_messages import Image, Patch, PatchKind
from esker.wire.limits import CHUNK_BYTES_MAX
from esker.wire.status import Status

from .mutables import image

WRITE, TRUNCATE, REMOVE = PatchKind


@pytest.mark.parametrize(
    ("base", "patch", "length"),
    [
        (None, Patch(WRITE, 5, 3), 8),
        (image(length_bytes=20), Patch(WRITE, 5, 3), 20),
        (image(length_bytes=20), Patch(WRITE, 19, 3), 22),
        (None, Patch(TRUNCATE, 0, 7), 7),
        (image(length_bytes=20), Patch(TRUNCATE, 0, 7), 7),
        (image(length_bytes=20), Patch(REMOVE), 0),
    ],
)
def test_lengths(base: Image | None, patch: Patch, length: int) -> None:
    assert patches.resulting_length(base, patch) == length


@pytest.mark.parametrize(("has", "names", "after"), [(0, 0, 0), (3, 3, 3), (3, 5, 5)])
def test_a_truncate_version_never_goes_back(has: int, names: int, after: int) -> None:
    patch = Patch(WRITE, 0, 1, names)
    assert patches.resulting_truncate_version(image(truncate_version=has), patch) == after
    assert patches.refused(image(truncate_version=has), patch) is None


def test_what_comes_late_is_refused_but_a_removal() -> None:
    base = image(truncate_version=3)
    assert patches.refused(base, Patch(WRITE, 0, 1, 2)) is Status.CONDITION
    assert patches.refused(base, Patch(TRUNCATE, 0, 1, 2)) is Status.CONDITION
    assert patches.refused(base, Patch(REMOVE, truncate_version=2)) is None
    assert patches.refused(None, Patch(WRITE, 0, 1, 0)) is None


def test_chunks_have_a_longest_length() -> None:
    assert patches.refused(None, Patch(WRITE, CHUNK_BYTES_MAX - 1, 1)) is None
    assert patches.refused(None, Patch(WRITE, CHUNK_BYTES_MAX, 1)) is Status.TOO_LARGE
    assert patches.refused(None, Patch(TRUNCATE, 0, CHUNK_BYTES_MAX + 1)) is Status.TOO_LARGE
