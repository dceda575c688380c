"""What counts as a difference between the catalog and a drive."""

import pytest

from esker.tools.admin.catalog_streams import Block
from esker.wire.messages import CatalogEntry

BLOCK = Block(b"o" * 16, chain_id=3, key=b"key", block_bytes=4096, chunk_count=1, created_ms=1_000, version=7)
ENTRY = CatalogEntry(1, BLOCK.object_id, b"key", 4096, 1, 1_000, 7, 3)


def test_the_time_of_another_replica_is_no_difference() -> None:
    assert BLOCK.agrees(ENTRY)
    assert BLOCK._replace(created_ms=1_002).agrees(ENTRY), "as after the head of the chain is another one"


@pytest.mark.parametrize(
    ("field", "value"), [("chain_id", 4), ("key", b"yek"), ("block_bytes", 1), ("chunk_count", 2), ("version", 8)]
)
def test_everything_else_is(field: str, value: object) -> None:
    assert not BLOCK._replace(**{field: value}).agrees(ENTRY)  # type: ignore[arg-type]
