"""A replica that rots under load: no wrong byte, no failed read, and afterwards both copies are whole again."""

import asyncio
import json
import os
from pathlib import Path

from esker.kvclient import KVCacheClient, Status
from esker.tools.exit_codes import ExitCode
from esker.wire.limits import KIB

from ..tools.admin.test_admin_cli import esker
from ..waiting import until
from .clusters import SINGLE, connect, key_of, put_all, running, value_of, view
from .test_corruption import all_serve, spoil_chunks
from .test_failover import reading

BLOCKS = 120


async def writing(client: KVCacheClient, stop: asyncio.Event) -> int:
    """Puts and removes other blocks until told to stop; how many."""
    number = 10 * BLOCKS
    while not stop.is_set():
        values = {each: value_of(each, 16 * KIB) for each in range(number, number + 8)}
        assert set((await put_all(client, values)).values()) == {Status.OK}
        assert set(await client.remove([key_of(each) for each in list(values)[:4]])) == {Status.OK}
        number += 8
        await asyncio.sleep(0.01)  # so that two cores have time for everything else
    return number - 10 * BLOCKS


def holds_all(directory: str, values: dict[int, bytes]) -> bool:
    data = b"".join(path.read_bytes() for path in (Path(directory) / "data").rglob("*") if path.is_file())
    return all(value in data for value in values.values())


async def test_a_replica_rots_under_load(tmp_path: Path) -> None:
    values = {number: value_of(number, SINGLE.block_bytes_max) for number in range(BLOCKS)}
    async with running(tmp_path) as cluster, await connect(cluster) as client:
        await all_serve(cluster)
        assert set((await put_all(client, values)).values()) == {Status.OK}
        here = ("--cluster", cluster.address)
        stop = asyncio.Event()
        async with reading(client, values) as readers, asyncio.TaskGroup() as group:
            writer = group.create_task(writing(client, stop))
            await readers.some_rounds()
            texts = [values[number][-100:] for number in range(0, BLOCKS, 2)]
            assert spoil_chunks(cluster.drive_directories[0], texts) == len(texts)
            await readers.some_rounds()
            (drive,) = {
                each.drive_id
                for each in cluster.processes()
                if each.directory == cluster.drive_directories[0] and each.drive_id
            }
            told = json.loads(await esker("scrub", drive, "--wait", "60s", "--rate", "1g", "--json", *here))
            (figures,) = told["drives"]
            assert figures["last"]["repaired"] == figures["last"]["mismatches"]
            assert (figures["drive_id"], figures["unrepaired"]) == (drive, 0)
            await readers.some_rounds()
            stop.set()
        assert writer.result() > 0

        async def settled() -> bool:
            return (await view(cluster)).total("suspects_waiting") == 0

        await until(settled, "every report has been looked into")
        seen = await view(cluster)
        assert seen.total("repair_repaired") == len(texts)
        assert seen.total("repair_lost") == seen.total("repair_removed") == seen.total("damaged_chunks") == 0
        await esker("scrub", "--all", "--wait", "1m", "--rate", "1g", *here)
        report = json.loads(await esker("scrub", "--status", "--json", *here))
        assert [each["last"]["mismatches"] for each in report["drives"]] == [0, 0]
        assert [each["last"]["chunks"] > BLOCKS for each in report["drives"]] == [True, True]
    for directory in cluster.drive_directories:
        assert holds_all(directory, values), "every block is in a slot of every drive"


async def test_a_scrub_goes_on_after_a_restart_of_its_worker(tmp_path: Path) -> None:
    values = {number: value_of(number, SINGLE.block_bytes_max) for number in range(BLOCKS)}
    async with running(tmp_path, drives=1, replicas=1) as cluster, await connect(cluster) as client:
        await all_serve(cluster)
        assert set((await put_all(client, values)).values()) == {Status.OK}
        here = ("--cluster", cluster.address)
        await esker("scrub", "--all", "--rate", "1m", *here)

        async def chunks() -> int:
            return (await view(cluster)).total("scrub_pass_chunks")

        before = await until(chunks, "some chunks have been looked at")
        pid = cluster.kill_worker(0)
        await until(lambda: not os.path.exists(f"/proc/{pid}"), "the worker's end")

        async def back() -> bool:
            return (await view(cluster)).total("scrub_pass") == 1

        await until(back, "the worker is back, with its pass")
        told = json.loads(await esker("scrub", "--all", "--wait", "60s", "--rate", "1g", "--json", *here))
        (figures,) = told["drives"]
        assert figures["last"]["number"] == 1
        assert figures["last"]["chunks"] >= before
        assert told["exit_code"] == ExitCode.FINE
