"""Operators' overrides on real clusters: a chain whose last serving replica is lost for good."""

import itertools
import json
import os
import shutil
from pathlib import Path

from esker.kvclient import Status
from esker.runtime.hostid import socket_path
from esker.tools.dev_cluster import DevCluster
from esker.tools.exit_codes import ExitCode
from esker.wire.types import Chain, TargetState

from ..tools.admin.test_admin_cli import esker
from ..waiting import until
from .clusters import connect, down, get_all, put_all, put_through, running, value_of, view

LENGTH = 10_000
OFFLINE, LASTSRV, SERVING = TargetState.OFFLINE, TargetState.LASTSRV, TargetState.SERVING


async def chains_with(cluster: DevCluster, drive_id: str, *states: TargetState) -> list[Chain]:
    """The chains, if the drive's replica is in one of these states in all of them; else none."""
    chains = (await view(cluster)).routing.chains
    found = [each.state for chain in chains for each in chain.replicas if each.drive_id == drive_id]
    return list(chains) if set(found) <= set(states) else []


async def test_a_chain_whose_last_replica_was_formatted_anew_is_forced_to_another(tmp_path: Path) -> None:
    async with running(tmp_path) as cluster:
        client = await connect(cluster)
        kept = {number: value_of(number, LENGTH) for number in range(20)}
        await put_through(client, kept)
        workers = [process for process in cluster.processes() if process.role == "worker"]
        back, last = workers[0].drive_id, workers[1].drive_id
        lost = {number: value_of(number, LENGTH) for number in range(100, 120)}
        with down(cluster, 0):
            await until(lambda: chains_with(cluster, back, OFFLINE), "the chains go on without the drive")
            await put_through(client, lost)
            cluster.kill_worker(1)
            await until(lambda: chains_with(cluster, last, LASTSRV), "nobody serves")
            shutil.rmtree(cluster.drive_directories[1])
            os.unlink(socket_path(f"{last}.sock"))  # No other worker will ever listen there.
        await until(lambda: chains_with(cluster, back, TargetState.WAITING), "the other drive is back")
        names = ("--cluster", cluster.address)

        async def formatted_anew_has_joined() -> str:
            drives = {worker.drive_id for worker in (await view(cluster)).routing.workers}
            return next(iter(drives - {back, last}), "")

        fresh = await until(formatted_anew_has_joined, "the emptied drive has another id")
        chains = await chains_with(cluster, last, LASTSRV)
        assert chains, "the emptied drive is no candidate"
        assert not any(fresh in str(chain) for chain in chains), "nor in any chain"
        shown = await esker("force-chain", 1, "--serve", back, *names, code=ExitCode.USAGE)
        assert last in shown
        assert "--yes-lose-data" in shown
        assert await chains_with(cluster, last, LASTSRV) == chains, "nothing was changed"
        for chain in chains:
            told = await esker("force-chain", chain.chain_id, "--serve", back, "--yes-lose-data", "--json", *names)
            answer = json.loads(told)
            assert (answer["done"], answer["serves"], answer["candidates"]) == (True, back, [last])
            assert answer["version"] > chain.version
        assert await chains_with(cluster, last, OFFLINE)

        async def has_what_the_drive_had() -> bool:
            return await get_all(client, list(kept), timeout_s=10) == list(kept.values())

        await until(has_what_the_drive_had, "the client has the newer map")

        async def the_rest_is_lost() -> bool:
            """Until the worker has the newer map it says that others may have what it has not."""
            return set(await get_all(client, list(lost), timeout_s=10)) == {Status.NOT_FOUND}

        await until(the_rest_is_lost, "what only the other drive had is absent")
        await put_through(client, lost)

        few = await esker("set-min-replicas", 2, "--json", *names, code=ExitCode.DEGRADED)
        assert json.loads(few)["short"] == [chain.chain_id for chain in chains]
        fresh_blocks = itertools.count(200)

        async def puts_are_refused() -> bool:
            """Workers learn of it with their next heartbeat."""
            number = next(fresh_blocks)
            (status,) = (await put_all(client, {number: value_of(number, LENGTH)}, timeout_s=1)).values()
            return status not in (Status.OK, Status.EXISTS)

        await until(puts_are_refused, "one replica is too few to acknowledge anything")
        assert "had another" in await esker("set-min-replicas", 1, *names)
        await put_through(client, {100_000: value_of(100_000, LENGTH)})
        await client.aclose()
