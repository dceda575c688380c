"""Heartbeats in memory, and what an operator is told of the cluster."""

import msgspec
import pytest

from esker.meta.heartbeats import Heartbeats, cluster_note
from esker.wire.errors import RequestFailed
from esker.wire.messages import Heartbeat
from esker.wire.status import Status
from esker.wire.types import Chain, ChainGoal, Leaving, Replica, Routing

from .conftest import worker

ROUTING = Routing(
    cluster_id="c1",
    version=5,
    workers=(worker(0), worker(1, node="n2")),
    chains=(Chain(1, 1, (Replica("d0"), Replica("d1"))), Chain(2, 1, (Replica("d1"), Replica("d0")))),
    tables=(),
    drives_expected=2,
    replicas=2,
)


def heartbeat(drive_id: str = "d0", incarnation: str = "first") -> Heartbeat:
    return Heartbeat(drive_id, incarnation, 5, used_bytes=70, capacity_bytes=100)


def test_the_last_heartbeat_and_its_age_are_told() -> None:
    heartbeats = Heartbeats()
    heartbeats.note(heartbeat(), ROUTING, 10.0)
    first, second = heartbeats.statuses(ROUTING, 12.5)
    assert (first.worker, first.seconds_since_heartbeat, first.used_bytes, first.chains) == (worker(0), 2.5, 70, 2)
    assert (second.seconds_since_heartbeat, second.used_bytes) == (-1.0, 0)


def test_a_new_incarnation_has_not_spoken_yet() -> None:
    heartbeats = Heartbeats()
    heartbeats.note(heartbeat(), ROUTING, 10.0)
    moved = msgspec.structs.replace(ROUTING, workers=(worker(0, incarnation="second"),))
    assert heartbeats.statuses(moved, 11.0)[0].seconds_since_heartbeat == -1.0


@pytest.mark.parametrize(("drive_id", "incarnation", "status"), [
    ("d7", "first", Status.NOT_FOUND),
    ("d0", "older", Status.FORBIDDEN),
])  # fmt: skip
def test_strangers_and_replaced_workers_are_refused(drive_id: str, incarnation: str, status: Status) -> None:
    with pytest.raises(RequestFailed) as caught:
        Heartbeats().note(heartbeat(drive_id, incarnation), ROUTING, 1.0)
    assert caught.value.status == status


def test_notes() -> None:
    def noted(**changes: object) -> str:
        return cluster_note(msgspec.structs.replace(ROUTING, **changes))

    assert noted() == ""
    assert noted(chains=(), drives_expected=3) == "2 of 3 drives have joined"
    assert noted(workers=(worker(0), worker(1))).startswith("2 of 2 chains have replicas that share a node")
    assert noted(workers=(*ROUTING.workers, worker(2))) == "drives without chains: d2; run esker admin expand"
    more = (*ROUTING.workers, worker(2))
    assert noted(workers=more, leaving=(Leaving("d2", 1),)) == "drained drives that are empty and may be removed: d2"
    assert noted(goals=(ChainGoal(1, ("d0",)),)) == "chains that are getting other drives: 1"
