"""Which pairs of operations conflict, for every engine alike: each kind of read against each kind of write."""

from collections.abc import Awaitable, Callable

import pytest

from esker.meta.store.base import KEY_END, Store, Transaction, after_prefix
from esker.meta.store.errors import NotCommitted, RetriesExhausted

from .conftest import HandClock, everything, put

Read = Callable[[Transaction], Awaitable[object]]
Write = Callable[[Transaction], None]

KEY = b"k5"
"""Stored before, as are its neighbours k4 and k6."""


async def over_own_add(transaction: Transaction) -> object:
    transaction.add(KEY, b"\x01")
    return await transaction.get(KEY)


async def in_pages(transaction: Transaction) -> object:
    return [page async for page in transaction.pages(b"k", b"l", page_rows=1)]


READS: dict[str, Read] = {
    "get": lambda transaction: transaction.get(KEY),
    "get_many": lambda transaction: transaction.get_many([b"x", KEY]),
    "get_range": lambda transaction: transaction.get_range(b"k", b"l"),
    "get_range of one key": lambda transaction: transaction.get_range(KEY, KEY + b"\x00"),
    "get_range that ends there": lambda transaction: transaction.get_range(b"k", b"l", limit=2),
    "get_range backwards": lambda transaction: transaction.get_range(b"k", b"l", limit=2, reverse=True),
    "pages": in_pages,
    "watch": lambda transaction: transaction.watch(KEY),
    "add_read_conflict_range": lambda transaction: transaction.add_read_conflict_range(KEY, KEY + b"\x00"),
    "get over an own add": over_own_add,
}
OTHER_READS: dict[str, Read] = {
    "read_version": lambda transaction: transaction.read_version(),
    "snapshot get": lambda transaction: transaction.get(KEY, snapshot=True),
    "snapshot get_many": lambda transaction: transaction.get_many([KEY], snapshot=True),
    "snapshot get_range": lambda transaction: transaction.get_range(b"k", b"l", snapshot=True),
    "get of the neighbours": lambda transaction: transaction.get_many([b"k4", b"k6", KEY + b"\x00", b"k"]),
    "get_range before": lambda transaction: transaction.get_range(b"k", KEY),
    "get_range after": lambda transaction: transaction.get_range(KEY + b"\x00", b"l"),
    "get_range that ends before": lambda transaction: transaction.get_range(b"k", b"l", limit=1),
    "get_range backwards that ends before": lambda transaction: transaction.get_range(
        b"k", b"l", limit=1, reverse=True
    ),
    "get_range of nothing": lambda transaction: transaction.get_range(KEY, KEY),
    "add_read_conflict_range of nothing": lambda transaction: transaction.add_read_conflict_range(KEY, KEY),
}
WRITES: dict[str, Write] = {
    "set": lambda transaction: transaction.set(KEY, b"new"),
    "set to the same": lambda transaction: transaction.set(KEY, b"5"),
    "clear": lambda transaction: transaction.clear(KEY),
    "clear_range": lambda transaction: transaction.clear_range(KEY, KEY + b"\x00"),
    "add": lambda transaction: transaction.add(KEY, b"\x01"),
    "add_write_conflict_range": lambda transaction: transaction.add_write_conflict_range(KEY, KEY + b"\x00"),
}
OTHER_WRITES: dict[str, Write] = {
    "clear_range of nothing": lambda transaction: transaction.clear_range(KEY, KEY),
    "add_write_conflict_range of nothing": lambda transaction: transaction.add_write_conflict_range(KEY, KEY),
    "set beside": lambda transaction: transaction.set(b"m", b""),
    "clear_range beside": lambda transaction: transaction.clear_range(b"l", b"m"),
    "versionstamped key beside": lambda transaction: transaction.set_versionstamped_key(b"l", b"", b""),
}


async def meet(store: Store, read: Read, write: Write) -> None:
    """Read, then write elsewhere; another transaction writes in between. Raises what the commit raises."""
    await put(store, k4=b"4", k5=b"5", k6=b"6")
    reader, writer = store.transaction(), store.transaction()
    await read(reader)
    reader.set(b"z", b"")
    write(writer)
    await writer.commit()
    try:
        await reader.commit()
    finally:
        reader.reset()


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("read", READS)
async def test_a_read_conflicts_with_every_write_of_it(store: Store, read: str, write: str) -> None:
    with pytest.raises(NotCommitted) as caught:
        await meet(store, READS[read], WRITES[write])
    assert any(begin <= KEY < end for begin, end in caught.value.ranges)
    assert b"z" not in dict(await everything(store))


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("read", OTHER_READS)
async def test_what_was_not_read_does_not_conflict(store: Store, read: str, write: str) -> None:
    await meet(store, OTHER_READS[read], WRITES[write])
    assert b"z" in dict(await everything(store))


@pytest.mark.parametrize("write", OTHER_WRITES)
@pytest.mark.parametrize("read", READS)
async def test_what_was_not_written_does_not_conflict(store: Store, read: str, write: str) -> None:
    await meet(store, READS[read], OTHER_WRITES[write])
    assert b"z" in dict(await everything(store))


@pytest.mark.parametrize("second", WRITES)
@pytest.mark.parametrize("first", WRITES)
async def test_writes_alone_never_conflict(store: Store, first: str, second: str) -> None:
    await put(store, k5=b"5")
    one, other = store.transaction(), store.transaction()
    for transaction, write in ((one, first), (other, second)):
        await transaction.read_version()
        WRITES[write](transaction)
    await other.commit()
    await one.commit()


async def test_an_empty_range_conflicts_with_what_comes_into_it(store: Store) -> None:
    reader = store.transaction()
    assert await reader.get_range(b"k", after_prefix(b"k"), limit=10) == []
    reader.set(b"z", b"")
    await put(store, k7=b"7")
    with pytest.raises(NotCommitted):
        await reader.commit()


async def test_versionstamped_keys_conflict_with_the_range_that_they_fall_into(store: Store) -> None:
    async def append(transaction: Transaction) -> None:
        transaction.set_versionstamped_key(b"log/", b"", b"")

    async def read(transaction: Transaction) -> object:
        return await transaction.get_range(b"log/", b"log0")

    with pytest.raises(NotCommitted):
        await meet(store, read, lambda transaction: transaction.set_versionstamped_key(b"log/", b"", b""))
    await store.run(append, what="append")


async def test_a_commit_before_the_first_read_is_no_conflict(store: Store) -> None:
    transaction = store.transaction()
    transaction.set(b"z", b"")
    await put(store, k5=b"new")
    assert await transaction.get(KEY) == b"new"
    await transaction.commit()


async def test_a_transaction_without_writes_never_conflicts(store: Store) -> None:
    transaction = store.transaction()
    assert await transaction.get_range(b"", KEY_END) == []
    await put(store, k5=b"5")
    assert await transaction.get(KEY) is None
    assert await transaction.commit() == -1


async def test_fifty_conflicts_in_a_row_end_at_the_deadline_and_name_the_keys(store: Store, clock: HandClock) -> None:
    attempts = 0

    async def beaten(transaction: Transaction) -> None:
        nonlocal attempts
        attempts += 1
        await transaction.get_many([b"hot", b"hotter", b"cold"])
        transaction.set(b"mine", b"")
        await put(store, hot=b"%d" % attempts, hotter=b"%d" % attempts)

    begun_s = clock.now_s
    with pytest.raises(
        RetriesExhausted, match=r"^move: not done within 20 s, \d+ attempts; contended: hot, hotter$"
    ) as caught:
        await store.run(beaten, what="move", timeout_s=20)
    assert attempts >= 50
    assert clock.now_s - begun_s <= 20
    assert caught.value.ranges == ((b"hot", b"hot\x00"), (b"hotter", b"hotter\x00"))
    assert caught.value.contended
