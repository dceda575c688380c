"""`esker admin scrub`: which drives it is about, how it ends, what it says of workers that do not answer."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from esker.tools.admin.scrub_command import DriveScrub, chosen, exit_code, run_scrub
from esker.tools.dev_cluster import DevCluster
from esker.tools.exit_codes import ExitCode
from esker.wire.errors import UserError
from esker.wire.limits import MIB
from esker.wire.scrub_messages import ScrubPass, ScrubReply
from esker.wire.types import Worker

from ...cluster.clusters import down
from .test_admin_cli import esker, unused_address

FINE, DEGRADED, DIFFERENCES = ExitCode.FINE, ExitCode.DEGRADED, ExitCode.DIFFERENCES


def worker(drive_id: str, node_id: str) -> Worker:
    return Worker(drive_id, node_id, "127.0.0.1", 1, "", "boot", "life", 1)


def test_drives_and_nodes_by_name() -> None:
    workers = [worker("d2", "n2"), worker("d1", "n1"), worker("d0", "n1")]
    found: Callable[..., list[str]] = lambda *names: [each.drive_id for each in chosen(workers, names)]  # noqa: E731
    assert found() == ["d0", "d1", "d2"]
    assert found("n1") == ["d0", "d1"]
    assert found("d1", "n2") == ["d1", "d2"]
    assert found("d0", "n1") == ["d0", "d1"], "each once"
    with pytest.raises(UserError, match="no drive and no node called 'd9'; esker admin nodes lists them"):
        found("d1", "d9")


def scrubbed(*, lost: int = 0, waiting: int = 0, number: int = 3, running: bool = False) -> DriveScrub:
    """A drive whose pass 3 was asked for."""
    figures = ScrubPass(number, 1, 0 if running else 2, 10, 20, lost + waiting, 0, lost, waiting)
    reply = ScrubReply(figures, None, 1, 1) if running else ScrubReply(None, figures, 1, 1)
    return DriveScrub(worker("d0", "n0"), reply, awaited=3)


@pytest.mark.parametrize(
    ("drives", "waited", "code"),
    [
        ([scrubbed()], True, FINE),
        ([scrubbed(), scrubbed(lost=1)], True, DIFFERENCES),
        ([scrubbed(waiting=1)], True, DIFFERENCES),
        ([scrubbed(running=True)], True, ExitCode.AGAIN),
        ([scrubbed(running=True)], False, FINE),
        ([scrubbed(running=True, lost=1)], False, DIFFERENCES),
        ([scrubbed(number=2)], True, ExitCode.AGAIN),
        ([scrubbed(), DriveScrub(worker("d1", "n1"), trouble="silent")], False, DEGRADED),
        ([DriveScrub(worker("d1", "n1"), trouble="silent"), scrubbed(lost=1)], True, DIFFERENCES),
    ],
)
def test_exit_codes(drives: list[DriveScrub], waited: bool, code: ExitCode) -> None:
    assert exit_code(drives, waited=waited) is code


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ((), "name the drives or nodes to scrub, or give --all"),
        (("d0", "--all"), "give drives and nodes, or --all, not both"),
        (("--status", "--wait", "5s"), "--status starts nothing; leave out --wait and --rate"),
        (("--all", "--rate", "5k"), "--rate 5k; allowed: 1 MiB to 1 TiB"),
        (("--all", "--rate", "2t"), "--rate 2t; allowed: 1 MiB to 1 TiB"),
    ],
)
async def test_bad_input_is_one_line(arguments: tuple[str, ...], complaint: str) -> None:
    said = await esker("scrub", *arguments, "--cluster", unused_address(), code=ExitCode.USAGE)
    assert complaint in said


async def test_with_a_worker_down_it_scrubs_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with DevCluster(tmp_path, drives=2, replicas=1, capacity_bytes=64 * MIB, port=0) as cluster:
        with down(cluster, 0):
            code = await run_scrub(cluster.address, (), start=True, wait_s=30, rate_bytes_per_s=0, as_json=True)
            assert code is DEGRADED
            drives = json.loads(capsys.readouterr().out)["drives"]
            assert sorted(each["answered"] for each in drives) == [False, True]
            (silent,) = [each for each in drives if not each["answered"]]
            assert silent["trouble"]
            (other,) = [each for each in drives if each["answered"]]
            assert other["last"]["number"] == 1
            code = await run_scrub(cluster.address, (), start=False, wait_s=None, rate_bytes_per_s=0, as_json=False)
            assert code is DEGRADED
            shown = capsys.readouterr().out
            assert "no answer" in shown
            assert f"{silent['drive_id']} did not answer: " in shown
        said = await esker("scrub", "nowhere", "--cluster", cluster.address, code=ExitCode.USAGE)
        assert "no drive and no node called 'nowhere'" in said
