"""Messages of operators' overrides: what travels for each."""

import msgspec
import pytest

from esker.wire.codec import decode_body, encode_body
from esker.wire.messages import Message
from esker.wire.override_messages import (
    ForceChain,
    ForceChainReply,
    ReplicaReport,
    SetMinReplicas,
    SetMinReplicasReply,
)
from esker.wire.types import Chain, Replica, TargetState

CHAIN = Chain(7, 3, (Replica("d1", TargetState.LASTSRV),), 1)
CHAIN_VALUES = {
    "chain_id": 7,
    "version": 3,
    "replicas": [{"drive_id": "d1", "state": "lastsrv", "incarnation": ""}],
    "min_replicas": 1,
}


@pytest.mark.parametrize(("message", "values"), [
    (ForceChain(7, "d1", 3, True, True), [7, "d1", 3, True, True]),
    (
        ForceChainReply(CHAIN, (ReplicaReport("d1", "n1", TargetState.LASTSRV, 2.5, True),), True),
        [CHAIN_VALUES, [["d1", "n1", "lastsrv", 2.5, True]], True],
    ),
    (SetMinReplicas(2, 7, 1, True), [2, 7, 1, True]),
    (SetMinReplicasReply(6, 5, 1, (7,)), [6, 5, 1, [7]]),
])  # fmt: skip
def test_golden_values(message: Message, values: list[object]) -> None:
    encoded = encode_body(message)
    assert msgspec.msgpack.decode(encoded) == values
    assert decode_body(type(message), encoded) == message
