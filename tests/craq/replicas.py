"""Chains of three, contents, and a replica whose effects are written down: what the tests of the replica share."""

from collections.abc import Iterable

from esker.craq.messages import Content, Create, Found, Remove, Reserved, Stored, Written
from esker.craq.replica import AnyEffect, AnyEvent, ChainReplica
from esker.craq.versions import CHAIN_VERSION_SHIFT
from esker.wire.ids import NO_PUT_ID
from esker.wire.types import Chain, Replica, TargetState

CHAIN_VERSION = 3
FIRST_VERSION = CHAIN_VERSION << CHAIN_VERSION_SHIFT
LIFE = "life"
CHUNK = b"c" * 24
HEAD, MIDDLE, TAIL = "d0", "d1", "d2"


def chain(
    drives: Iterable[str] = (HEAD, MIDDLE, TAIL),
    version: int = CHAIN_VERSION,
    min_replicas: int = 2,
    states: dict[str, TargetState] | None = None,
) -> Chain:
    """A chain over `drives`, all SERVING but for `states`."""
    states = states or {}
    replicas = tuple(Replica(drive, states.get(drive, TargetState.SERVING), LIFE) for drive in drives)
    return Chain(7, version, replicas, min_replicas)


def content(number: int, put_id: bytes = NO_PUT_ID) -> Content:
    """One content per number."""
    return Content(4096, number.to_bytes(8, "little"), put_id, 4096, 1, b"key")


def stored(number: int, version: int = 9, put_id: bytes = NO_PUT_ID) -> Stored:
    """`content(number)` as a durable chunk."""
    return Stored(version, content(number, put_id))


def replica(drive: str = HEAD, **chain_fields: object) -> ChainReplica:
    """The replica on `drive`."""
    return ChainReplica(chain(**chain_fields), drive, LIFE)  # type: ignore[arg-type]


def create(op: int = 1, number: int = 1, *, version: int = 0, payload: bool = True, chunk: bytes = CHUNK) -> Create:
    """A create of `content(number)`."""
    return Create(op, CHAIN_VERSION, chunk, version, content(number), payload)


def remove(op: int = 1, version: int = 0, put_id: bytes = NO_PUT_ID, chunk: bytes = CHUNK) -> Remove:
    """A removal."""
    return Remove(op, CHAIN_VERSION, chunk, version, put_id)


def play(machine: ChainReplica, *events: AnyEvent) -> list[AnyEffect]:
    """Hands over the events; returns what the last one brought about."""
    effects: list[AnyEffect] = []
    for event in events:
        effects = list(machine.handle(event))
    return effects


def writing(machine: ChainReplica, op: int = 1, number: int = 1, *, version: int = 0) -> list[AnyEffect]:
    """A create that finds nothing, up to its write; returns the effects of that."""
    return play(machine, create(op, number, version=version), Found(op, None), Reserved(op, True))


def holding(machine: ChainReplica, op: int = 1, number: int = 1, *, version: int = 0) -> list[AnyEffect]:
    """A create up to its durable copy; the successor has not answered."""
    writing(machine, op, number, version=version)
    return play(machine, Written(op))
