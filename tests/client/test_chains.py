"""Routes of a chain table: who serves which chain, as the cluster map and the connections say."""

from typing import Any

import msgspec
import pytest

from esker.client.chains import ChainRoutes
from esker.client.fake import TABLE_ID
from esker.wire.errors import EskerError
from esker.wire.status import Status
from esker.wire.types import TargetState

from .conftest import statuses


async def test_a_chain_is_dead_while_no_replica_of_it_can_be_asked(make_rig: Any, until: Any) -> None:
    rig = await make_rig("tcp")
    assert rig.routes.now().dead == frozenset()
    await rig.cluster.workers[0].stop()
    await until(lambda: rig.state(0).channel is None)
    assert rig.routes.now().dead == frozenset(), "each has another replica"
    await rig.cluster.workers[1].stop()
    await until(lambda: rig.state(1).channel is None)
    assert rig.routes.now().dead == {0}, "the chain on both"
    rig.cluster.fail_over({"drive2": TargetState.OFFLINE})
    await rig.routing.refresh()
    assert rig.routes.now().dead == {0, 1}
    rig.state(3).silent = True
    rig.workers.changed()
    assert rig.routes.now().dead == {0, 1, 2, 3}


async def test_a_chain_that_the_map_does_not_have_any_more_is_dead(make_rig: Any) -> None:
    rig = await make_rig()
    routing = rig.workers.routing
    rig.workers.apply(msgspec.structs.replace(routing, version=routing.version + 1, chains=routing.chains[1:]))
    assert rig.routes.now().dead == {0}
    assert statuses(await rig.creates([0, 1], [b"a", b"b"]).run(600)) == [Status.UNAVAILABLE, Status.OK]
    assert statuses(await rig.reads([0, 1], [bytearray(9), bytearray(9)]).run(600)) == [Status.UNAVAILABLE, Status.OK]


async def test_a_version_that_the_map_does_not_have_is_refused(make_rig: Any) -> None:
    rig = await make_rig()
    with pytest.raises(EskerError, match="no chain table 1 of version 7"):
        ChainRoutes(rig.workers, TABLE_ID, 7)
