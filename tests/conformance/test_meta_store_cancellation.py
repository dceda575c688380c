"""A task may be cancelled in the middle of everything: the store stays usable, and nothing is done by half."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from esker.meta.store.base import KEY_END, Store, Transaction

from .conftest import everything, put

TURNS = 12
"""More turns of the loop than any engine's operations need before their commit."""


async def change(transaction: Transaction) -> None:
    """Uses everything; writes two keys that belong together."""
    await transaction.read_version()
    (count,) = await transaction.get_many([b"a"])
    assert await transaction.get(b"b") == count
    await transaction.get_range(b"", KEY_END, limit=3, reverse=True)
    changed = b"%d" % (int(count or b"0") + 1)
    transaction.set(b"a", changed)
    transaction.set(b"b", changed)
    transaction.set_versionstamped_key(b"log/", b"", changed)


@pytest.mark.parametrize("turns", range(TURNS))
async def test_a_transaction_is_done_whole_or_not_at_all(store: Store, turns: int) -> None:
    await put(store, a=b"0", b=b"0")
    task = asyncio.create_task(store.run(change, what="change"))
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    (outcome,) = await asyncio.gather(task, return_exceptions=True)
    assert outcome is None or isinstance(outcome, asyncio.CancelledError)
    await store.run(change, what="change")
    rows = await everything(store)
    (count,) = {value for key, value in rows if key in (b"a", b"b")}
    assert count in (b"1", b"2")
    if outcome is None:
        assert count == b"2"
    assert [value for key, value in rows if key.startswith(b"log/")] == [b"1", b"2"][: int(count)]
    assert store.statistics().get("store_snapshots", 0) == 0


READS: list[Callable[[Transaction], Awaitable[object]]] = [
    lambda transaction: transaction.read_version(),
    lambda transaction: transaction.get(b"a"),
    lambda transaction: transaction.get_many([b"a", b"b"]),
    lambda transaction: transaction.get_range(b"", KEY_END),
    lambda transaction: transaction.watch(b"a"),
]


@pytest.mark.parametrize("read", READS)
async def test_a_read_that_was_cancelled_can_be_made_again(
    store: Store, read: Callable[[Transaction], Awaitable[object]]
) -> None:
    await put(store, a=b"1")
    transaction = store.transaction()
    task = asyncio.ensure_future(read(transaction))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert await transaction.get(b"a") == b"1"
    transaction.set(b"b", b"2")
    await transaction.commit()
    transaction.reset()
    assert await everything(store) == [(b"a", b"1"), (b"b", b"2")]


async def test_who_waits_for_a_watch_may_give_up_and_come_back(store: Store) -> None:
    transaction = store.transaction()
    watch = await transaction.watch(b"a")
    await transaction.commit()
    waiting = asyncio.create_task(watch.wait(30))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert not await watch.wait(0)
    await put(store, a=b"1")
    assert await watch.wait(30)
    transaction.reset()


async def test_a_cancelled_commit_settles_before_the_store_closes(store: Store) -> None:
    async def write(transaction: Transaction) -> None:
        transaction.set(b"a", b"1")

    tasks = [asyncio.create_task(store.run(write, what="write")) for _ in range(20)]
    await asyncio.sleep(0)
    for task in tasks[::2]:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert all(task.cancelled() for task in tasks[::2])
    assert all(task.result() is None for task in tasks[1::2])
    await store.aclose()
