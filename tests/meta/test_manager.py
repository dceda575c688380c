"""The manager lease of one server, step by step, on clocks that tests move by hand."""

from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from esker.craq.lease import DEATHS_FROM_S, TAKEOVER_S
from esker.meta import keys
from esker.meta.manager import Manager, NotManager, read_manager
from esker.meta.records import ManagerTerm
from esker.meta.store.base import Retry, Store, Transaction
from esker.meta.store.memory import Fault, MemoryStore
from esker.wire.limits import MANAGER_LEASE_S


@dataclass
class Faulty:
    """What becomes of the next commits."""

    next: Fault = None

    def __call__(self) -> Fault:
        return self.next


class Time:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def faulty() -> Faulty:
    return Faulty()


@pytest.fixture
async def store(time: Time, faulty: Faulty) -> AsyncIterator[MemoryStore]:
    async def sleep(pause_s: float) -> None:
        time.now_s += pause_s

    opened = MemoryStore(Retry(clock=time, sleep=sleep), faulty)
    yield opened
    await opened.aclose()


def manager(store: Store, name: str, time: Time) -> Manager:
    made = Manager(store, name, time)
    made.address = f"{name}:1"
    return made


async def write(transaction: Transaction) -> None:
    transaction.set(b"w", b"1")


async def test_the_first_server_takes_it_and_the_second_waits(store: MemoryStore, time: Time) -> None:
    assert await read_manager(store) == ManagerTerm(0, "", "")
    a, b = manager(store, "a", time), manager(store, "b", time)
    await a.step()
    await b.step()
    assert (a.term, b.term) == (1, 0)
    assert a.recorded == b.recorded == await read_manager(store) == ManagerTerm(1, "a", "a:1")


async def test_it_is_lost_when_the_lease_has_run_out(store: MemoryStore, time: Time) -> None:
    a = manager(store, "a", time)
    await a.step()
    time.now_s += MANAGER_LEASE_S - 0.01
    assert a.term == 1
    time.now_s += 0.01
    assert a.term == 0
    with pytest.raises(NotManager):
        await a.transact(write, what="write")


async def test_a_slow_renewal_counts_from_its_beginning(time: Time) -> None:
    def slow() -> Fault:
        time.now_s += 0.9
        return None

    store = MemoryStore(Retry(clock=time), slow)
    a = manager(store, "a", time)
    for _ in range(3):
        begun_s = time.now_s
        await a.step()
        time.now_s = begun_s + MANAGER_LEASE_S - 0.01
        assert a.term == 1
        time.now_s = begun_s + MANAGER_LEASE_S
        assert a.term == 0
    await store.aclose()


async def test_renewals_keep_it_and_a_standby_away(store: MemoryStore, time: Time) -> None:
    a, b = manager(store, "a", time), manager(store, "b", time)
    for _ in range(20):
        await a.step()
        await b.step()
        assert (a.term, b.term) == (1, 0)
        time.now_s += 0.9


async def test_a_standby_takes_over_once_it_saw_nothing_change(store: MemoryStore, time: Time) -> None:
    a, b = manager(store, "a", time), manager(store, "b", time)
    await a.step()
    time.now_s += 1.9
    await b.step()
    time.now_s += TAKEOVER_S - 0.01
    await b.step()
    assert (a.term, b.term) == (0, 0), "what it saw first may have been committed just then"
    time.now_s += 0.02
    await b.step()
    assert (a.term, b.term) == (0, 2)
    await a.step()
    assert (a.term, b.term) == (0, 2)
    assert a.recorded == ManagerTerm(2, "b", "b:1")


async def test_of_two_standbys_one_takes_it(store: MemoryStore, time: Time) -> None:
    a, b, c = (manager(store, name, time) for name in "abc")
    await a.step()
    for standby in (b, c):
        await standby.step()
    time.now_s += TAKEOVER_S + 0.01
    for standby in (b, c):
        await standby.step()
    assert (a.term, b.term, c.term) == (0, 2, 0)


async def test_a_holder_that_was_away_keeps_its_term_but_starts_anew(store: MemoryStore, time: Time) -> None:
    a = manager(store, "a", time)
    await a.step()
    time.now_s += DEATHS_FROM_S
    assert not a.may_declare_dead, "its lease has run out"
    await a.step()
    assert a.term == 1
    assert not a.may_declare_dead
    for _ in range(3):
        time.now_s += 1.0
        await a.step()
    assert a.may_declare_dead


@pytest.mark.parametrize("fault", ["before", "after"])
async def test_a_renewal_whose_answer_is_lost_extends_nothing(
    store: MemoryStore, time: Time, faulty: Faulty, fault: Fault
) -> None:
    a = manager(store, "a", time)
    await a.step()
    faulty.next = fault
    begun_s = time.now_s
    await a.step()
    assert time.now_s > begun_s + 0.5, "it was tried until the step's deadline"
    time.now_s = begun_s + MANAGER_LEASE_S
    assert a.term == 0
    faulty.next = None
    await a.step()
    assert a.term == 1


async def test_a_takeover_whose_answer_is_lost_is_taken_up(store: MemoryStore, time: Time, faulty: Faulty) -> None:
    a = manager(store, "a", time)
    faulty.next = "after"
    await a.step()
    assert a.term == 0
    faulty.next = None
    assert await read_manager(store) == ManagerTerm(1, "a", "a:1")
    await a.step()
    assert a.term == 1


async def test_a_transaction_of_an_older_term_is_not_committed(store: MemoryStore, time: Time) -> None:
    a, b = manager(store, "a", time), manager(store, "b", time)
    await a.step()
    await b.step()

    async def slow(transaction: Transaction) -> None:
        """The lease changes hands while it is under way."""
        transaction.set(b"w", b"old")
        if not b.term:
            time.now_s += TAKEOVER_S + 0.01
            await b.step()

    with pytest.raises(NotManager, match="write: this metadata server is not the manager any more"):
        await a.transact(slow, what="write", timeout_s=60)
    assert b.term == 2
    assert await store.run(lambda transaction: transaction.get(b"w"), what="read") is None
    await b.transact(write, what="write")
    assert await store.run(lambda transaction: transaction.get(b"w"), what="read") == b"1"


async def test_renewals_do_not_disturb_the_managers_transactions(store: MemoryStore, time: Time) -> None:
    a = manager(store, "a", time)
    await a.step()
    attempts = 0

    async def slow(transaction: Transaction) -> None:
        nonlocal attempts
        attempts += 1
        transaction.set(b"w", b"1")
        await a.step()

    await a.transact(slow, what="write")
    assert attempts == 1


async def test_given_up_it_can_be_taken_at_once(store: MemoryStore, time: Time) -> None:
    a, b = manager(store, "a", time), manager(store, "b", time)
    await b.give_up()
    await a.step()
    await b.step()
    await a.give_up()
    assert a.term == 0
    await b.step()
    assert b.term == 2
    await a.give_up()
    assert (await read_manager(store)).holder == "b"


async def test_it_is_given_up_here_even_if_the_store_does_not_take_it(
    store: MemoryStore, time: Time, faulty: Faulty
) -> None:
    a = manager(store, "a", time)
    await a.step()
    faulty.next = "before"
    await a.give_up()
    assert a.term == 0
    assert (await read_manager(store)).holder == "a"


async def test_an_exclusive_store_is_held_by_whoever_has_it_open(
    monkeypatch: pytest.MonkeyPatch, store: MemoryStore, time: Time
) -> None:
    monkeypatch.setattr(store, "exclusive", True)
    before, after = manager(store, "before", time), manager(store, "after", time)
    await before.step()
    await before.step()
    time.now_s += 1e6
    assert before.term == 1
    assert await store.run(lambda transaction: transaction.get(keys.MANAGER_BEATS), what="read") == b"\1" + bytes(7)
    await after.step()
    assert after.term == 2
