"""What a drive keeps of its workers' joins, from one life to the next."""

import shutil
from pathlib import Path

from esker.chunkserver.engine.io import open_engine
from esker.chunkserver.engine.store import DriveStore
from esker.chunkserver.joins import JOINS_STATE, JoinHistory
from esker.wire.limits import JOIN_LIVES_MAX, MIB
from esker.wire.status import Status


async def life(directory: Path, incarnation: str, *, joins: bool = True) -> tuple[int, tuple[str, ...]]:
    """A life of the drive's worker; what it tells the metadata server."""
    engine = open_engine("threads")
    try:
        store = DriveStore.open(directory, cluster_id="c1", drive_id="d1", capacity_bytes=64 * MIB, engine=engine)
        try:
            history = JoinHistory(store, incarnation, lambda why: None)
            told = history.join, history.lives
            assert await store.drain(5)
            if joins:
                history.joined()
                history.joined()  # as after a heartbeat that no server knew: changes nothing
                assert await store.drain(5)
            return told
        finally:
            store.close()
    finally:
        engine.close()


async def test_joins_are_counted_from_life_to_life(tmp_path: Path) -> None:
    assert await life(tmp_path / "d", "a") == (1, ("a",))
    assert await life(tmp_path / "d", "b") == (2, ("a", "b"))
    assert await life(tmp_path / "d", "c") == (3, ("b", "c"))


async def test_a_life_that_does_not_learn_that_it_joined_is_named_by_the_next_ones(tmp_path: Path) -> None:
    await life(tmp_path / "d", "a")
    await life(tmp_path / "d", "b", joins=False)
    assert await life(tmp_path / "d", "c", joins=False) == (2, ("a", "b", "c"))
    assert await life(tmp_path / "d", "d") == (2, ("a", "b", "c", "d"))
    assert await life(tmp_path / "d", "e") == (3, ("d", "e"))


async def test_a_copy_from_before_counts_from_there(tmp_path: Path) -> None:
    await life(tmp_path / "d", "a")
    shutil.copytree(tmp_path / "d", tmp_path / "copy")
    await life(tmp_path / "d", "b")
    assert await life(tmp_path / "copy", "x", joins=False) == (2, ("a", "x"))
    assert await life(tmp_path / "copy", "y", joins=False) == (2, ("a", "x", "y")), "started again it is no newer"


async def test_the_lives_are_bounded_and_damage_begins_anew(tmp_path: Path) -> None:
    engine = open_engine("threads")
    store = DriveStore.open(tmp_path / "d", cluster_id="c1", drive_id="d1", capacity_bytes=64 * MIB, engine=engine)
    failed: list[str] = []
    for number in range(JOIN_LIVES_MAX + 1):
        history = JoinHistory(store, str(number), failed.append)
        assert await store.drain(5)
    assert history.lives == tuple(str(number) for number in range(1, JOIN_LIVES_MAX + 1))
    results: list[Status] = []
    store.state_put(JOINS_STATE, b"\xc1", lambda _, status: results.append(status), None)
    assert await store.drain(5)
    history = JoinHistory(store, "anew", failed.append)
    assert (history.join, history.lives, results, failed) == (1, ("anew",), [Status.OK], [])
    assert await store.drain(5)
    store.close()
    engine.close()
