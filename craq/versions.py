"""How versions of chunks are made: they grow for ever, and no two heads ever draw the same. Pure."""

from esker.wire.types import Chain

CHAIN_VERSION_SHIFT = 40
"""A chunk's version: chain version << 40 | how manieth that was drawn in it."""


def first_version(chain: Chain) -> int:
    """The first version that the head of `chain` draws."""
    return chain.version << CHAIN_VERSION_SHIFT


def drawn_before(version: int, chain: Chain) -> bool:
    """Whether the chunk's version was drawn in an earlier version of the chain."""
    return version >> CHAIN_VERSION_SHIFT < chain.version
