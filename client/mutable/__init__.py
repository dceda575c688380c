"""Mutable chunks, of which files are made: written in place, truncated, removed and read in parts."""

from esker.client.mutable.client import ChunkClient
from esker.client.mutable.types import (
    Change,
    ChangeResult,
    ChunkRead,
    ChunkReadResult,
    ChunkRemove,
    ChunkStatistics,
    ChunkStatus,
    ChunkTruncate,
    ChunkWrite,
)

__all__ = [
    "Change",
    "ChangeResult",
    "ChunkClient",
    "ChunkRead",
    "ChunkReadResult",
    "ChunkRemove",
    "ChunkStatistics",
    "ChunkStatus",
    "ChunkTruncate",
    "ChunkWrite",
]
