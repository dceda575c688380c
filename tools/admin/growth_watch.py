"""Looks on while drives are emptied: how many chains have left them, how much was sent, what it waits for.

Changes nothing; a metadata server that is silent for a while only leaves a gap.
"""

import asyncio
import sys
from collections.abc import Collection
from dataclasses import asdict, dataclass
from typing import Any

from esker.tools.admin.cluster_figures import COUNTERS_TIMEOUT_S, ClusterFigures, counters_of
from esker.tools.admin.link import ClusterLink
from esker.tools.admin.output import shown_size
from esker.tools.progress import progress
from esker.wire.errors import ConnectionFailed, DeadlineExceeded, RequestFailed
from esker.wire.messages import ClusterStatus, ClusterStatusReply, Method
from esker.wire.types import Chain, TargetState

LOOK_INTERVAL_S = 0.5
assert COUNTERS_TIMEOUT_S < 5.0, "a look must be over before the next one is missed"


@dataclass(frozen=True, slots=True)
class Outcome:
    """How far it has come."""

    state: str
    """`done`, `begun` (nobody waited), or `under way` (the wait was over before)."""
    chains: int = 0
    """That the drives were in at the first look."""
    chains_done: int = 0
    sent_bytes: int = 0
    """By resyncs, meanwhile."""
    waiting_for: str = ""
    """What keeps it from going on; empty: it goes on."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


async def watch(link: ClusterLink, drives: Collection[str], wait_s: float | None, *, forgotten: bool) -> Outcome:
    """Until no chain has any of `drives` (and, with `forgotten`, the cluster has forgotten them), or `wait_s` are
    over; None: one look. Ctrl-C ends the looking only, and says so.
    """
    try:
        return await _watch(link, drives, wait_s, forgotten=forgotten)
    except asyncio.CancelledError:
        print("it goes on in the background; run the same command again to watch", file=sys.stderr, flush=True)
        raise


async def _watch(link: ClusterLink, drives: Collection[str], wait_s: float | None, *, forgotten: bool) -> Outcome:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + (wait_s or 0.0)
    figures = await _look(link)
    total = len(_chains_with(figures.chains, drives))
    sent_bytes = _SentBytes()
    silence = ""
    with progress("moving chains", max(1, total)) as advance:
        while True:
            left = _chains_with(figures.chains, drives)
            known = {worker.drive_id for worker in figures.status.routing.workers}
            sent = sent_bytes.seen(figures)
            if not left and not (forgotten and known & set(drives)):
                return Outcome("done", total, total, sent)
            advance(total - len(left), f"{shown_size(sent)} sent" + (f"; waiting for {silence}" if silence else ""))
            if wait_s is None:
                return Outcome("begun", total, total - len(left), sent)
            if loop.time() >= deadline:
                return Outcome("under way", total, total - len(left), sent, silence or waiting_for(figures, left))
            await asyncio.sleep(min(LOOK_INTERVAL_S, max(0.0, deadline - loop.time())))
            try:
                figures, silence = await _look(link), ""
            except (ConnectionFailed, DeadlineExceeded, RequestFailed):
                silence = "the metadata servers, which do not answer"


class _SentBytes:
    """What resyncs have sent since the first look, also from drives whose workers are gone by now."""

    def __init__(self) -> None:
        self._first: dict[str, int] = {}
        self._last: dict[str, int] = {}

    def seen(self, figures: ClusterFigures) -> int:
        for drive_id, counters in figures.counters.items():
            sent = counters.get("resync_bytes", 0)
            if sent < self._last.get(drive_id, 0):
                self._first[drive_id] = sent - (self._last[drive_id] - self._first[drive_id])  # Its worker began anew.
            self._first.setdefault(drive_id, sent)
            self._last[drive_id] = sent
        return sum(self._last[drive_id] - first for drive_id, first in self._first.items())


async def _look(link: ClusterLink) -> ClusterFigures:
    status = await link.meta(Method.CLUSTER_STATUS, ClusterStatus(), ClusterStatusReply)
    return ClusterFigures(status, await counters_of(link, status))


def _chains_with(chains: Collection[Chain], drives: Collection[str]) -> list[Chain]:
    return [chain for chain in chains if any(each.drive_id in drives for each in chain.replicas)]


def waiting_for(figures: ClusterFigures, left: Collection[Chain]) -> str:
    """Why these chains do not get on: drives that are silent, chains that nobody serves."""
    goals = {goal.chain_id: goal for goal in figures.status.routing.goals}
    silent = {each.worker.drive_id for each in figures.status.workers if not figures.up(each)}
    missing = sorted(
        {each for chain in left if chain.chain_id in goals for each in goals[chain.chain_id].added} & silent
    )
    if missing:
        return f"drives that are silent: {', '.join(missing)}"
    down = [chain.chain_id for chain in left if not any(each.state is TargetState.SERVING for each in chain.replicas)]
    if down:
        return f"chains that nobody serves: {', '.join(map(str, down[:5]))}" + (" and more" if len(down) > 5 else "")
    return ""
