"""Bodies of the requests by which an operator overrides what the manager decides about chains. The rules of the bodies
are those of `messages.py`. Only the manager carries them out; other metadata servers pass them on.
"""

from esker.wire.messages import Message
from esker.wire.types import Chain, TargetState


class ForceChain(Message, frozen=True):
    """Makes a drive serve a chain that nobody serves, although it may not have everything that was acknowledged.

    With `lose_data` it is done, if the chain still has the version `chain_version`; without, only shown.
    """

    chain_id: int
    drive_id: str
    chain_version: int = 0
    lose_data: bool = False
    forwarded: bool = False
    """A metadata server passed it on to the one that it takes for the manager."""


class ReplicaReport(Message, frozen=True):
    """What is known of a replica when nobody serves its chain."""

    drive_id: str
    node_id: str
    """Empty: the drive is not known any more."""
    state: TargetState
    heard_s_ago: float
    """-1: its worker was not heard of since the manager became the manager."""
    up: bool


class ForceChainReply(Message, frozen=True):
    """The chain as it is now, and its replicas as they were before."""

    chain: Chain
    replicas: tuple[ReplicaReport, ...]
    done: bool


class SetMinReplicas(Message, frozen=True):
    """How many replicas must serve for a write to be acknowledged: of one chain, of the chains of one table, or, with
    neither, of all chains that have so many replicas.
    """

    min_replicas: int
    chain_id: int = 0
    table_id: int = 0
    forwarded: bool = False


class SetMinReplicasReply(Message, frozen=True):
    chains: int
    """Which the request was about."""
    changed: int
    smaller: int
    """Passed over, as they have fewer replicas."""
    short: tuple[int, ...]
    """Chains of which fewer replicas serve now: they acknowledge no writes."""
