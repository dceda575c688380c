"""Which namespaces a worker refuses, and how its clients are told."""

from pathlib import Path

import msgspec
import pytest

from esker.chunkserver.lookups import LookupService
from esker.chunkserver.reads import ReadService
from esker.chunkserver.spaces import Spaces
from esker.chunkserver.writes import WriteService
from esker.wire.errors import RequestFailed
from esker.wire.messages import Method
from esker.wire.status import Status
from esker.wire.types import Routing

from .drives import routing_of, served
from .raw_client import SPACE, content


def routing(last: int, *live: int) -> Routing:
    return Routing("c", 1, (), (), (), 1, 1, namespace_last=last, namespaces=live)


def test_only_namespaces_that_the_map_once_had_and_has_no_more_are_removed() -> None:
    spaces = Spaces()
    assert not spaces.removed(1)
    spaces.take(routing(5, 2, 5))
    assert [space for space in range(9) if spaces.removed(space)] == [1, 3, 4]
    with pytest.raises(RequestFailed, match="namespace 3 has been removed; open one of that name again") as caught:
        spaces.check(3)
    assert caught.value.status is Status.NAMESPACE_REMOVED
    spaces.check(6)
    spaces.take(routing(6, 2))
    assert spaces.removed(5)


async def test_reads_and_writes_of_a_removed_namespace_fail_and_removals_go_on(tmp_path: Path) -> None:
    async with served(tmp_path) as (drive,), await drive.client() as client:
        reads = ReadService(
            drive.store, drive.engine, drive.pool, drive.memories, drive.counters, set(), drive.view.spaces.check
        )
        lookups = LookupService(drive.store, drive.counters, drive.view.spaces.check)
        writes = WriteService(
            drive.runner, drive.pool, drive.memories, drive.counters, drive.view.replicas, lambda: None,
            drive.view.spaces.check,
        )  # fmt: skip
        assert drive.server is not None
        handlers = {
            Method.READ: reads.read,
            Method.LOOKUP: lookups.lookup,
            Method.CREATE: writes.create,
            Method.CONFIRM: writes.confirm,
        }
        drive.server.handlers.update({int(method): handler for method, handler in handlers.items()})
        assert await client.create({1: content(1)}) == {1: Status.OK}
        assert await client.lookup([1]) == b"\x01"
        drive.view.take(msgspec.structs.replace(routing_of([drive], 2), namespace_last=SPACE, namespaces=(1,)))
        for call in (
            lambda: client.create({2: content(2)}),
            lambda: client.confirm({1: content(1)}),
            lambda: client.read_one(1),
            lambda: client.lookup([1]),
        ):
            with pytest.raises(RequestFailed, match="has been removed") as caught:
                await call()
            assert caught.value.status is Status.NAMESPACE_REMOVED
        assert await client.remove(1, chain_version=2) is Status.OK
