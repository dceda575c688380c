"""`esker admin status`, `nodes`, `chains` and `targets`: of a calm cluster, and of one with a worker down."""

import asyncio
import json
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from esker.tools.admin.cluster_commands import run_chains, run_nodes, run_status, run_targets
from esker.tools.admin.cluster_figures import ChainState, ClusterFigures, admitted, chain_state
from esker.tools.dev_cluster import DevCluster
from esker.tools.exit_codes import ExitCode
from esker.tools.inspect_cluster import view_cluster
from esker.wire.errors import UserError
from esker.wire.limits import MIB
from esker.wire.messages import ClusterStatusReply, WorkerStatus
from esker.wire.types import Chain, Replica, Routing, TargetState

from ...meta.conftest import worker
from ...waiting import until
from .test_admin_cli import esker, unused_address

S, Y, W, L, O = TargetState  # noqa: E741
FINE, DEGRADED = ExitCode.FINE, ExitCode.DEGRADED
GENEROUS_S = 60
Command = Callable[..., Awaitable[ExitCode]]


def chain(*states: TargetState, min_replicas: int = 1) -> Chain:
    return Chain(1, 1, tuple(Replica(f"d{number}", state) for number, state in enumerate(states)), min_replicas)


@pytest.mark.parametrize(
    ("states", "min_replicas", "word"),
    [
        ((S, S), 1, ChainState.WHOLE),
        ((S,), 1, ChainState.WHOLE),
        ((S, Y), 1, ChainState.DEGRADED),
        ((S, O), 1, ChainState.DEGRADED),
        ((S, S, O), 2, ChainState.DEGRADED),
        ((S, Y, W), 2, ChainState.READ_ONLY),
        ((W, L), 1, ChainState.DOWN),
        ((L, L), 1, ChainState.DOWN),
    ],
)
def test_a_chain_in_a_word(states: tuple[TargetState, ...], min_replicas: int, word: ChainState) -> None:
    assert chain_state(chain(*states, min_replicas=min_replicas)) is word


def test_who_takes_part() -> None:
    assert admitted(Replica("d", S, "life"), "life")
    assert admitted(Replica("d", Y, "life"), "life")
    assert not admitted(Replica("d", S, "life"), "later")
    assert not admitted(Replica("d", W), "life")


def figures(heard_s: float = 0.1, manager: str = "h:1", state: TargetState = S) -> ClusterFigures:
    routing = Routing("c", 1, (worker(0),), (chain(state),), (), 1, 1)
    status = ClusterStatusReply(routing, (WorkerStatus(worker(0), heard_s, 1, 1),), 0, "", manager, 1, "memory")
    return ClusterFigures(status)


def test_what_needs_attention() -> None:
    assert figures().healthy()
    assert not figures(heard_s=2.5).healthy()
    assert not figures(heard_s=-1.0).healthy()
    assert not figures(manager="").healthy()
    assert not figures(state=L).healthy()


@pytest.mark.parametrize(
    ("counters", "trouble"),
    [
        ({"read_errors": 9, "damaged_chunks": 0, "drive_failed": 0}, ""),
        ({"read_errors": 10}, "10 reads failed since its worker started; check the drive"),
        ({"damaged_chunks": 2}, "2 chunks are damaged and not repaired"),
        ({"drive_failed": 1}, "takes no more writes"),
    ],
)
def test_drives_in_trouble(counters: dict[str, int], trouble: str) -> None:
    seen = ClusterFigures(figures().status, {worker(0).drive_id: counters})
    found = [why for _, why in seen.troubles()]
    assert [why[: len(trouble)] for why in found] == [trouble] * bool(trouble)
    assert seen.healthy() is not bool(trouble)


async def test_a_cluster_is_looked_at(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with DevCluster(tmp_path, drives=3, replicas=2, capacity_bytes=64 * MIB, port=0) as cluster:

        async def shown(command: Command, code: ExitCode, **options: Any) -> str:
            capsys.readouterr()
            assert await command(cluster.address, **options) is code
            return capsys.readouterr().out

        async def as_json(
            command: Callable[..., Awaitable[ExitCode]], code: ExitCode, **options: Any
        ) -> dict[str, Any]:
            found: dict[str, Any] = json.loads(await shown(command, code, as_json=True, **options))
            assert found["exit_code"] == code
            return found

        status = await as_json(run_status, FINE)
        assert (status["drives"], status["drives_up"], status["nodes"], status["chains"]) == (3, 3, 1, 6)
        assert status["chains_by_state"] == {"whole": 6, "degraded": 0, "read-only": 0, "down": 0}
        assert status["manager"] == cluster.address
        text = await shown(run_status, FINE, as_json=False)
        assert "6 whole" in text
        assert "3 of 3 up" in text
        workers = (await as_json(run_nodes, FINE))["workers"]
        assert [(each["serving"], each["chains"], each["up"]) for each in workers] == [(4, 4, True)] * 3
        drive = workers[0]["drive_id"]
        targets = (await as_json(run_targets, FINE, drive=drive))["targets"]
        assert {(each["drive_id"], each["state"], each["admitted"]) for each in targets} == {(drive, "serving", True)}
        assert len(targets) == 4
        assert len((await as_json(run_targets, FINE, drive=""))["targets"]) == 12
        with pytest.raises(UserError, match="no drive called 'nowhere'"):
            await run_targets(cluster.address, drive="nowhere", as_json=True)
        assert "takes part" in await shown(run_targets, FINE, drive="", as_json=False)
        assert (await as_json(run_chains, FINE, unsettled=True))["chains"] == []
        assert len((await as_json(run_chains, FINE, unsettled=False))["chains"]) == 6

        dead = cluster.processes()[2].drive_id
        (supervisor,) = [process.pid for process in cluster.processes() if process.role == "chunkserver"]
        os.kill(supervisor, signal.SIGSTOP)
        try:
            cluster.kill_worker(0)

            async def failed_over() -> bool:
                chains = (await view_cluster(cluster.address)).routing.chains
                return sum(chain_state(chain) is ChainState.DEGRADED for chain in chains) == 4

            await until(failed_over, "the chains went on without it")
            async with asyncio.timeout(GENEROUS_S):
                assert "2 of 3 up" in await shown(run_status, DEGRADED, as_json=False)
                assert "silent" in await shown(run_nodes, DEGRADED, as_json=False)
                unsettled = (await as_json(run_chains, DEGRADED, unsettled=True))["chains"]
                assert len(unsettled) == 4
                assert all({"drive_id": dead, "state": "offline"} in each["replicas"] for each in unsettled)
                text = await shown(run_chains, DEGRADED, unsettled=False, as_json=False)
                assert "offline" in text
                assert "degraded" in text
                gone = (await as_json(run_targets, DEGRADED, drive=dead))["targets"]
                assert [(each["state"], each["up"]) for each in gone] == [("offline", False)] * 4
                assert "silent" in await shown(run_targets, DEGRADED, drive=dead, as_json=False)
        finally:
            os.kill(supervisor, signal.SIGCONT)
        await cluster.settled()
        assert (
            json.loads(await esker("status", "--json", "--cluster", cluster.address))["chains_by_state"]["whole"] == 6
        )


async def test_a_cluster_that_is_not_there() -> None:
    address = unused_address()
    complaints = await asyncio.gather(
        *(
            esker(each, "--cluster", address, code=ExitCode.UNREACHABLE)
            for each in ("status", "nodes", "chains", "targets")
        )
    )
    assert all("no metadata server answered" in each for each in complaints)
