"""Checks of what callers of a namespace pass, beyond those that all clients share (`client/arguments.py`)."""

from collections.abc import Sequence
from typing import Any

import msgspec

from esker.client.arguments import checked_integer, checked_text
from esker.wire.errors import UserError
from esker.wire.types import Geometry


def checked_geometry(geometry: Any) -> Geometry:
    """The geometry with everything filled in; figures of numpy become plain ones."""
    if not isinstance(geometry, Geometry):
        raise UserError(f"geometry is a {type(geometry).__name__}; pass a Geometry")
    fields = {}
    for field in msgspec.structs.fields(Geometry):
        check = checked_text if field.type is str else checked_integer
        fields[field.name] = check(getattr(geometry, field.name), field.name)
    plain = msgspec.structs.replace(geometry, **fields)
    try:
        resolved = plain.resolved()
    except ValueError as error:
        raise UserError(str(error)) from error
    if resolved.block_tokens >= 1 << 63:
        raise UserError(f"block_tokens is {resolved.block_tokens}; allowed: less than 2^63")
    return resolved


def check_same_length(keys: Sequence[bytes], others: Sequence[Any], name: str) -> None:
    """As many of the one as of the other."""
    for sequence, what in ((keys, "keys"), (others, name)):
        if not hasattr(sequence, "__len__") or not hasattr(sequence, "__getitem__"):
            raise UserError(f"{what} are a {type(sequence).__name__}; pass a list")
    if len(keys) != len(others):
        raise UserError(f"{len(keys)} keys but {len(others)} {name}")
