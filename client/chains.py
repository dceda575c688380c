"""Which workers serve a chain table's chains, by the chain's index in the table. A view over `Workers`.

Rebuilt when the workers' epoch changes, so that the data path pays an index per chunk.
"""

from dataclasses import dataclass

from esker.client.workers import Workers, WorkerState
from esker.wire.errors import EskerError
from esker.wire.types import Chain, TargetState


@dataclass(frozen=True, slots=True)
class Routes:
    """One epoch's answers, each a list by chain index."""

    chain_ids: list[int]
    chains: list[Chain]
    readers: list[tuple[WorkerState, ...]]
    """Workers of serving replicas that are up; those not suspect where there is one. Where no replica serves, as all
    went down together, those that may serve again: what they have is verified like everything else.
    """
    serving: list[tuple[WorkerState, ...]]
    """Workers of all serving replicas, up or not."""
    heads: list[WorkerState | None]
    """The head's worker, where it is up."""
    hopeful: list[bool]
    """Whether a replica serves, or may soon: it is up, and all went down together, so the first to be back will."""


class ChainRoutes:
    """The routes of one chain-table version. Raises `EskerError` where the cluster map does not have it."""

    def __init__(self, workers: Workers, table_id: int, table_version: int) -> None:
        self._workers = workers
        self._table = (table_id, table_version)
        self._epoch = -1
        self._routes = self._build()

    @property
    def chain_count(self) -> int:
        """Chains in the table."""
        return len(self._routes.chain_ids)

    def now(self) -> Routes:
        """The routes at this moment."""
        if self._epoch != self._workers.epoch:
            self._routes = self._build()
        return self._routes

    def _build(self) -> Routes:
        routing = self._workers.routing
        table = next((each for each in routing.tables if (each.table_id, each.version) == self._table), None)
        if table is None:
            raise EskerError(f"the cluster map has no chain table {self._table[0]} of version {self._table[1]}")
        by_id = {chain.chain_id: chain for chain in routing.chains}
        chains = [by_id[chain_id] for chain_id in table.chain_ids]
        serving = [self._in_state(chain, TargetState.SERVING) for chain in chains]
        last = [self._in_state(chain, TargetState.LASTSRV) for chain in chains]
        self._epoch = self._workers.epoch
        return Routes(
            chain_ids=list(table.chain_ids),
            chains=chains,
            readers=[_preferred(states or lasts) for states, lasts in zip(serving, last, strict=True)],
            serving=serving,
            hopeful=[
                bool(states) or any(state.channel is not None for state in lasts)
                for states, lasts in zip(serving, last, strict=True)
            ],
            heads=[states[0] if states and states[0].channel is not None else None for states in serving],
        )

    def _in_state(self, chain: Chain, state: TargetState) -> tuple[WorkerState, ...]:
        by_drive = self._workers.by_drive
        return tuple(
            by_drive[replica.drive_id]
            for replica in chain.replicas
            if replica.state is state and replica.drive_id in by_drive
        )


def _preferred(states: tuple[WorkerState, ...]) -> tuple[WorkerState, ...]:
    up = tuple(state for state in states if state.channel is not None)
    return tuple(state for state in up if not state.suspect) or up
