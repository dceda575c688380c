"""Lookups of many keys in one round trip: which blocks' first chunks are there.

Each key's chain is asked at one serving replica, the requests to all workers leave together on their fast
connections. A worker that fails, or does not answer within half of the budget, is passed over: its keys are asked at
another replica, once; so are keys that a replica does not have and cannot vouch for. What is not answered then counts
as absent.
"""

import asyncio
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from esker.client.chains import ChainRoutes
from esker.client.workers import WorkerState
from esker.wire.errors import DeadlineExceeded, EskerError
from esker.wire.limits import LOOKUP_KEYS_MAX
from esker.wire.messages import LOOKUP_KEY, LOOKUP_PRESENT, LOOKUP_UNSURE, Lookup, LookupReply, Method

_COLUMN = np.dtype([("object", "V16"), ("chain", "<u4")])
assert _COLUMN.itemsize == LOOKUP_KEY.size

Flags = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.intp]


async def lookup(routes: ChainRoutes, space: int, objects: bytes, chains: Numbers, timeout_s: float) -> Flags:
    """1 for each present block, 0 for the others; `objects` are concatenated ids, `chains` chain indexes."""
    count = len(chains)
    present = np.zeros(count, dtype=np.uint8)
    if count == 0:
        return present
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    column = np.empty(count, dtype=_COLUMN)
    column["object"] = np.frombuffer(objects, dtype="V16")
    column["chain"] = np.array(routes.now().chain_ids, dtype=np.uint32)[chains]
    left = np.arange(count, dtype=np.intp)
    passed_over: set[WorkerState] = set()
    for round_s in (timeout_s / 2, None):
        groups = _groups(routes, chains, left, passed_over)
        budget_s = deadline - loop.time() if round_s is None else round_s
        if not groups or budget_s <= 0:
            break
        answers = await asyncio.gather(
            *(_ask(state, space, column[numbers].tobytes(), budget_s) for state, numbers in groups)
        )
        failed = []
        for (state, numbers), answer in zip(groups, answers, strict=True):
            if answer is None or len(answer) != len(numbers):
                failed.append(numbers)
                passed_over.add(state)
                continue
            told = np.frombuffer(answer, dtype=np.uint8)
            present[numbers] = told == LOOKUP_PRESENT
            unsure = numbers[told == LOOKUP_UNSURE]
            if len(unsure):
                failed.append(unsure)
                passed_over.add(state)
                state.map_is_old()
        if not failed:
            break
        left = np.concatenate(failed)
    return present


def _groups(
    routes: ChainRoutes, chains: Numbers, numbers: Numbers, passed_over: set[WorkerState]
) -> list[tuple[WorkerState, Numbers]]:
    """Which worker is asked for which keys; keys whose replicas are all down or passed over are left out."""
    choice = _choose(routes.now().readers, passed_over)
    states = list(dict.fromkeys(state for state in choice if state is not None))
    number_of = {state: number for number, state in enumerate(states)}
    by_chain = np.array([-1 if state is None else number_of[state] for state in choice], dtype=np.intp)
    asked = by_chain[chains[numbers]]
    groups = []
    for number, state in enumerate(states):
        mine = numbers[asked == number]
        groups += [(state, mine[at : at + LOOKUP_KEYS_MAX]) for at in range(0, len(mine), LOOKUP_KEYS_MAX)]
    return groups


def _choose(readers: Sequence[tuple[WorkerState, ...]], passed_over: set[WorkerState]) -> list[WorkerState | None]:
    """One replica per chain, evenly over the workers."""
    chosen: dict[WorkerState, int] = {}
    choice: list[WorkerState | None] = []
    for candidates in readers:
        best: WorkerState | None = None
        for state in candidates:
            if state not in passed_over and (best is None or chosen.get(state, 0) < chosen.get(best, 0)):
                best = state
        choice.append(best)
        if best is not None:
            chosen[best] = chosen.get(best, 0) + 1
    return choice


async def _ask(state: WorkerState, space: int, keys: bytes, timeout_s: float) -> bytes | None:
    """The worker's answer; None where it gave none."""
    if state.channel is None:
        return None
    try:
        reply = await state.channel.fast.call(Method.LOOKUP, Lookup(space, keys), LookupReply, timeout_s=timeout_s)
    except DeadlineExceeded:
        state.mark_suspect()
        return None
    except EskerError:
        return None
    return reply.present
