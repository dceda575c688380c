"""A drive whose index LMDB cannot read any more: every request has its answer, and the drive has failed."""

from pathlib import Path
from typing import Any

import lmdb
import pytest

from esker.wire.errors import RequestFailed
from esker.wire.status import Status

from .drives import HEAD, ServedDrive, served
from .mutable_client import MutableClient
from .raw_client import content


class BrokenIndex:
    """An environment that fails what reads it: at the beginning of a transaction, or in a lookup."""

    def __init__(self, env: lmdb.Environment, *, begins: bool) -> None:
        self._env = env
        self._begins = begins

    def begin(self, *, write: bool = False, **options: Any) -> Any:
        if write:
            return self._env.begin(write=True, **options)
        if not self._begins:
            raise lmdb.PanicError("no snapshot")
        return BrokenSnapshot(self._env.begin(**options))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)


class BrokenSnapshot:
    """A read transaction in which nothing can be looked up."""

    def __init__(self, txn: Any) -> None:
        self._txn = txn
        self.abort = txn.abort

    def __enter__(self) -> "BrokenSnapshot":
        return self

    def __exit__(self, *_: object) -> None:
        self.abort()

    def get(self, *_: object, **__: object) -> bytes:
        raise lmdb.CorruptedError("no page")

    def cursor(self, **_: object) -> Any:
        raise lmdb.CorruptedError("no page")


def break_index(drive: ServedDrive, *, begins: bool) -> None:
    index = drive.store._index
    index.env = BrokenIndex(index.env, begins=begins)


@pytest.mark.parametrize("begins", [True, False])
@pytest.mark.parametrize("first", ["read", "lookup", "create", "remove", "write", "range", "stat"])
async def test_whoever_meets_it_is_answered_and_the_drive_has_failed(tmp_path: Path, first: str, begins: bool) -> None:
    async with served(tmp_path) as (drive,), await drive.client() as client:
        mutable = MutableClient(client)
        assert (await client.create({number: content(number) for number in range(200)}))[0] is Status.OK
        assert (await mutable.write(1, b"x")).status is Status.OK
        break_index(drive, begins=begins)

        async def read() -> None:
            found = await client.read([(number, 4096, 0) for number in range(200)])
            assert set(found.status.values()) == {Status.UNAVAILABLE}
            assert len(found.status) == 200

        async def lookup() -> None:
            with pytest.raises(RequestFailed) as caught:
                await client.lookup(list(range(5000)))
            assert caught.value.status is Status.UNAVAILABLE

        async def create() -> None:
            assert (await client.create({1: content(1), 300: content(300)})) == {
                1: Status.UNAVAILABLE,
                300: Status.UNAVAILABLE,
            }

        async def remove() -> None:
            assert await client.remove(1) is Status.UNAVAILABLE

        async def write() -> None:
            assert (await mutable.write(1, b"y", sequence=2)).status is Status.UNAVAILABLE

        async def range_() -> None:
            assert await mutable.read(1) is Status.UNAVAILABLE

        async def stat() -> None:
            assert (await mutable.stat(1))[0] is Status.UNAVAILABLE

        steps = {
            "read": read,
            "lookup": lookup,
            "create": create,
            "remove": remove,
            "write": write,
            "range": range_,
            "stat": stat,
        }
        await steps[first]()
        assert drive.store.failed is not None
        assert "index cannot be read" in drive.store.failed
        assert drive.view.offline_chains == {HEAD}
        for step in steps.values():
            await step()
