"""The KV-cache client: prefix-keyed blocks, get, put, match_prefix."""

from esker.client.buffers import BufferPool, PoolExhausted, Slot
from esker.kvclient.client import KVCacheClient
from esker.kvclient.keys import prefix_keys
from esker.kvclient.results import ClientStatistics, GetResult, PutResult
from esker.kvclient.sync import SyncKVCacheClient
from esker.wire.errors import EskerError, UserError
from esker.wire.status import Status
from esker.wire.types import Geometry

__all__ = [
    "BufferPool",
    "ClientStatistics",
    "EskerError",
    "Geometry",
    "GetResult",
    "KVCacheClient",
    "PoolExhausted",
    "PutResult",
    "Slot",
    "Status",
    "SyncKVCacheClient",
    "UserError",
    "prefix_keys",
]
