"""The fake's faults: commits whose answer is lost."""

import pytest

from esker.meta.store.base import Retry, Transaction
from esker.meta.store.errors import RetriesExhausted
from esker.meta.store.memory import MemoryStore


@pytest.mark.parametrize(("fault", "appended"), [("before", 1), ("after", 2)])
async def test_a_lost_answer_runs_the_function_again(fault: str, appended: int) -> None:
    """Appending is not idempotent, which shows whether the lost commit happened."""
    faults = iter([fault])
    store = MemoryStore(fault=lambda: next(faults, None))

    async def append(transaction: Transaction) -> None:
        transaction.set(b"a", (await transaction.get(b"a") or b"") + b"x")

    await store.run(append, what="append")
    assert await store.run(lambda transaction: transaction.get(b"a"), what="read") == b"x" * appended
    await store.aclose()


async def test_answers_that_are_always_lost_end_at_the_deadline() -> None:
    now_s = 0.0

    async def sleep(pause_s: float) -> None:
        nonlocal now_s
        now_s += pause_s

    store = MemoryStore(Retry(clock=lambda: now_s, sleep=sleep), fault=lambda: "before")

    async def write(transaction: Transaction) -> None:
        transaction.set(b"a", b"1")

    with pytest.raises(
        RetriesExhausted, match=r"write: not done within 1 s, .* last: the answer to the commit was lost"
    ):
        await store.run(write, what="write", timeout_s=1)
    await store.aclose()


async def test_versions_nobody_reads_are_forgotten() -> None:
    store = MemoryStore()
    for number in range(50):
        transaction = store.transaction()
        transaction.set(b"a", b"%d" % number)
        await transaction.commit()
    assert len(store._history[b"a"]) == 1
    await store.aclose()
