"""`esker admin replace-drive`, `drain`, `expand`, `remove-node` and `balance`: what they show and wait for, in a small
cluster of which a part is down; and that each answers in time all the same.
"""

import asyncio
import json
import re
from pathlib import Path

import pytest

from esker.meta.replanning import Cluster, KnownDrive
from esker.tools.admin.cluster_commands import run_nodes
from esker.tools.admin.cluster_figures import ClusterFigures
from esker.tools.admin.growth import run_balance, run_drain, run_expand, run_remove_node, run_replace
from esker.tools.admin.growth_shown import leftovers, passed_over
from esker.tools.admin.growth_watch import Outcome, _SentBytes, waiting_for, watch
from esker.tools.exit_codes import ExitCode
from esker.wire.errors import ConnectionFailed, UserError
from esker.wire.messages import ClusterStatusReply, WorkerStatus
from esker.wire.types import Chain, ChainGoal, Leaving, Replica, Routing, TargetState

from ...chunkserver.processes import metadata, worker
from ...meta.conftest import worker as known_worker
from ...waiting import until

S, L = TargetState.SERVING, TargetState.LASTSRV


def figures(*chains: Chain, goals: tuple[ChainGoal, ...] = (), silent: tuple[int, ...] = ()) -> ClusterFigures:
    workers = tuple(WorkerStatus(known_worker(n), -1.0 if n in silent else 0.1, 1, 1) for n in range(4))
    routing = Routing("c", 1, tuple(each.worker for each in workers), chains, (), 4, 2, goals=goals)
    return ClusterFigures(ClusterStatusReply(routing, workers, 0, "", "h:1", 1, "memory"))


def test_what_a_move_waits_for_is_named() -> None:
    chain = Chain(3, 1, (Replica("d0", S), Replica("d1", S)), 1)
    down = Chain(4, 1, (Replica("d0", L), Replica("d1", L)), 1)
    goal = ChainGoal(3, ("d1", "d2"), ("d2",))
    assert waiting_for(figures(chain, goals=(goal,)), [chain]) == ""
    assert waiting_for(figures(chain, goals=(goal,), silent=(2,)), [chain]) == "drives that are silent: d2"
    assert waiting_for(figures(chain, goals=(goal,), silent=(0, 3)), [chain]) == "", "those that are not added"
    assert waiting_for(figures(chain, down), [chain, down]) == "chains that nobody serves: 4"
    assert waiting_for(figures(*[down] * 7), [down] * 7) == "chains that nobody serves: 4, 4, 4, 4, 4 and more"


def test_drives_that_are_given_chains_but_are_not_empty_are_named() -> None:
    drives = [KnownDrive(known_worker(number), True, number * 1024) for number in range(3)]
    chain = Chain(1, 1, (Replica("d1"),), 1)
    found = Cluster(Routing("c", 1, tuple(each.worker for each in drives), (chain,), (), 3, 1), drives)
    (note,) = leftovers(found, {"d0", "d1", "d2"})
    assert "drive d2 holds 2 KiB of chains that it was taken out of" in note


def test_drives_that_get_no_chains_as_they_are_silent_are_named() -> None:
    drives = [KnownDrive(known_worker(number), number == 2, 0) for number in range(4)]
    chain = Chain(1, 1, (Replica("d1"),), 1)
    found = Routing("c", 1, tuple(each.worker for each in drives), (chain,), (), 3, 1, leaving=(Leaving("d3", 1),))
    (note,) = passed_over(Cluster(found, drives))
    assert "drive d0 is silent and gets no chains" in note


def test_bytes_sent_are_counted_through_restarts_and_ends() -> None:
    sent = _SentBytes()

    def seen(**counters: int) -> int:
        found = {drive: {"resync_bytes": value} for drive, value in counters.items()}
        return sent.seen(ClusterFigures(figures().status, found))

    assert seen(a=100, b=0) == 0
    assert seen(a=150, b=10) == 60
    assert seen(b=30) == 80, "a is gone"
    assert seen(a=150, b=5) == 80, "b began anew"
    assert seen(a=150, b=25, c=9) == 100


class Looks:
    """A `ClusterLink` that finds one thing after the other: how the chains are, or that nobody answers."""

    def __init__(self, *found: ClusterFigures | ConnectionFailed) -> None:
        self._found = list(found)
        self.over = asyncio.Event()
        """It was asked for the last of them."""

    async def meta(self, *question: object) -> ClusterStatusReply:
        found = self._found.pop(0) if len(self._found) > 1 else self._found[0]
        if len(self._found) == 1:
            self.over.set()
        if isinstance(found, ConnectionFailed):
            raise found
        return found.status

    async def worker(self, *question: object) -> None:
        raise ConnectionFailed("it is down")


BEFORE = Chain(3, 1, (Replica("d0", S), Replica("d1", S)), 1)
AFTER = Chain(3, 2, (Replica("d1", S), Replica("d2", S)), 1)


async def watched(link: Looks, wait_s: float | None) -> Outcome:
    return await watch(link, ["d0"], wait_s, forgotten=False)  # type: ignore[arg-type]


async def test_watching_outlasts_a_silence_of_the_metadata_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("esker.tools.admin.growth_watch.LOOK_INTERVAL_S", 0.0)
    looks = Looks(figures(BEFORE), ConnectionFailed("silent"), ConnectionFailed("silent"), figures(AFTER))
    assert await watched(looks, 60.0) == Outcome("done", 1, 1)
    assert await watched(Looks(figures(BEFORE)), None) == Outcome("begun", 1, 0)
    assert await watched(Looks(figures(BEFORE)), 0.0) == Outcome("under way", 1, 0)
    silent = await watched(Looks(figures(BEFORE), ConnectionFailed("silent")), 0.05)
    assert silent == Outcome("under way", 1, 0, 0, "the metadata servers, which do not answer")
    with pytest.raises(ConnectionFailed):
        await watched(Looks(ConnectionFailed("silent")), 60.0)


async def test_whoever_stops_watching_is_told_that_it_goes_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("esker.tools.admin.growth_watch.LOOK_INTERVAL_S", 0.0)
    looks = Looks(figures(BEFORE), figures(BEFORE))
    watching = asyncio.ensure_future(watched(looks, 60.0))
    await looks.over.wait()
    watching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await watching
    assert "goes on in the background; run the same command again" in capsys.readouterr().err


async def test_commands_answer_while_a_part_of_the_cluster_is_down(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def up(count: int) -> bool:
        await run_nodes(cluster, as_json=True)
        return [row["up"] for row in json.loads(capsys.readouterr().out)["workers"]].count(True) == count

    drives = [tmp_path / f"d{number}" for number in range(4)]
    async with metadata(tmp_path / "meta", 2, 2) as cluster, worker(cluster, drives[0], node_id="n0") as first:
        async with (
            worker(cluster, drives[1], node_id="n1"),
            worker(cluster, drives[2], node_id="n2") as spare,
            worker(cluster, drives[3], node_id="n3"),
        ):
            names = (first.ready["drive_id"], spare.ready["drive_id"])
            await until(lambda: up(4), "a heartbeat of every worker")
            assert await run_replace(cluster, *names, force=False, dry_run=True, wait_s=None, as_json=False) == 0
            out = capsys.readouterr().out
            assert re.search(rf"1 +\S +{names[0]}, \S+ +\S +{names[1]}, \S+", out)
            assert "2 chains would change; nothing was changed (--dry-run)" in out
            assert await run_drain(cluster, "n0", cancel=False, dry_run=True, wait_s=None, as_json=True) == 0
            assert len(json.loads(capsys.readouterr().out)["plan"]) == 2
            assert await run_balance(cluster, as_json=False) == 0
            assert "worst loss" in capsys.readouterr().out

            # What is added never gets as far as to serve, so that the replacement is under way for good.
            monkeypatch.setattr("esker.meta.chain_decisions.step_toward", lambda chain, goal, targets: chain)
            assert await run_replace(cluster, *names, force=False, dry_run=False, wait_s=None, as_json=True) == 0
            assert json.loads(capsys.readouterr().out)["state"] == "begun"
            await spare.destroy()
        # Only n0 is up now.

        await until(lambda: up(1), "the silence of the other drives")
        code = await run_replace(cluster, *names, force=False, dry_run=False, wait_s=0.1, as_json=False)
        assert code is ExitCode.AGAIN
        assert f"it waits for drives that are silent: {names[1]}; run the same" in capsys.readouterr().out
        with pytest.raises(UserError, match="is being replaced by"):
            await run_drain(cluster, "n0", cancel=False, dry_run=False, wait_s=0.1, as_json=False)
        assert await run_drain(cluster, "n0", cancel=True, dry_run=False, wait_s=None, as_json=False) == 0
        assert "n0 stays: 2 chains keep what they have" in capsys.readouterr().out
        with pytest.raises(UserError, match="only 0 drives are up and stay"):
            await run_drain(cluster, "n0", cancel=False, dry_run=False, wait_s=0.1, as_json=False)
        assert await run_expand(cluster, dry_run=False, as_json=False) == 0
        assert "there is nothing to expand" in capsys.readouterr().out
        assert await run_balance(cluster, as_json=True) == 0
        assert json.loads(capsys.readouterr().out)["goals"] == 0
        with pytest.raises(UserError, match="there is no drive and no node 'n9'"):
            await run_remove_node(cluster, "n9", as_json=False)
        assert await run_remove_node(cluster, "n2", as_json=False) == 0, "it is down, and holds nothing"
        with pytest.raises(UserError, match="was removed"):
            await run_replace(cluster, names[1], names[0], force=False, dry_run=False, wait_s=1.0, as_json=False)
