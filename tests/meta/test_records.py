"""Stored structs: golden bytes, and damage that is named instead of guessed at."""

import pytest

from esker.meta.records import ClusterRecord, pack, unpack
from esker.meta.store.errors import StoreFailed
from esker.wire.types import Chain, Replica


def test_golden_bytes() -> None:
    assert pack(ClusterRecord("c", 4, 2, 1)) == (
        b"\x01\x84\xaacluster_id\xa1c\xafdrives_expected\x04\xa8replicas\x02\xaacreated_ms\x01"
    )


def test_round_trip_and_missing_new_fields() -> None:
    chain = Chain(3, 2, (Replica("a"), Replica("b")), 1)
    assert unpack(Chain, b"k", pack(chain)) == chain
    old = b"\x01\x83\xa8chain_id\x03\xa7version\x02\xa8replicas\x90"
    assert unpack(Chain, b"k", old) == Chain(3, 2, (), 1)


@pytest.mark.parametrize("stored", [b"", b"\x02\x80", b"\x01", b"\x01\x93\x01", b"\x01\x80"])
def test_damage_is_named(stored: bytes) -> None:
    with pytest.raises(StoreFailed, match=r"under \\x04k .*(restore a backup|use the esker that wrote it)"):
        unpack(Chain, b"\x04k", stored)
