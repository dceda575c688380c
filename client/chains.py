"""Which workers serve a chain table's chains, by the chain's index in the table. A view over `Workers`.

Rebuilt when the workers' epoch changes, so that the data path pays an index per chunk.
"""

from dataclasses import dataclass

from esker.client.workers import Workers, WorkerState
from esker.wire.errors import EskerError
from esker.wire.types import Chain, ChainTable, TargetState


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
    dead: frozenset[int]
    """Chains without a serving replica whose worker is up and gives signs of life."""


class ChainRoutes:
    """The routes of one chain-table version. Raises `EskerError` where the cluster map does not have it."""

    def __init__(self, workers: Workers, table_id: int, table_version: int, *, waits: bool = True) -> None:
        self._workers = workers
        tables = workers.routing.tables
        found = next((each for each in tables if (each.table_id, each.version) == (table_id, table_version)), None)
        if found is None:
            raise EskerError(f"the cluster map has no chain table {table_id} of version {table_version}")
        self.table: ChainTable = found
        """Never changes."""
        self.waits = waits
        """Whether writes wait for a chain that does not serve. If not, others stand in for it."""
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
        by_id = {chain.chain_id: chain for chain in routing.chains}
        # One that the map does not have any more counts as one that nobody serves.
        chains = [by_id.get(chain_id) or Chain(chain_id, 0, ()) for chain_id in self.table.chain_ids]
        serving = [self._in_state(chain, TargetState.SERVING) for chain in chains]
        last = [self._in_state(chain, TargetState.LASTSRV) for chain in chains]
        self._epoch = self._workers.epoch
        return Routes(
            chain_ids=list(self.table.chain_ids),
            chains=chains,
            readers=[_preferred(states or lasts) for states, lasts in zip(serving, last, strict=True)],
            serving=serving,
            hopeful=[
                bool(states) or any(state.channel is not None for state in lasts)
                for states, lasts in zip(serving, last, strict=True)
            ],
            heads=[states[0] if states and states[0].channel is not None else None for states in serving],
            dead=frozenset(
                index
                for index, states in enumerate(serving)
                if not any(state.channel is not None and not state.silent for state in states)
            ),
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
