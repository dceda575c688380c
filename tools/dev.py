"""`esker dev`: runs a development cluster until it is told to stop, and says how to reach it."""

import asyncio
import os
import sys
from pathlib import Path

import msgspec
from rich.console import Console
from rich.text import Text

from esker.runtime.sizes import format_size
from esker.tools.dev_cluster import DevCluster, ProcessInfo
from esker.tools.exit_codes import ExitCode


class DevInfo(msgspec.Struct, frozen=True):
    """What `esker dev --json` prints once the cluster is ready."""

    address: str
    cluster_id: str
    directory: str
    drives: int
    replicas: int
    capacity_bytes: int
    """Of each drive."""
    pid: int
    """Of `esker dev` itself."""
    processes: list[ProcessInfo]


def info_of(cluster: DevCluster) -> DevInfo:
    """The cluster as it is now."""
    return DevInfo(
        address=cluster.address,
        cluster_id=cluster.cluster_id,
        directory=str(cluster.directory.path),
        drives=cluster.state.drives,
        replicas=cluster.state.replicas,
        capacity_bytes=cluster.state.capacity_bytes,
        pid=os.getpid(),
        processes=cluster.processes(),
    )


async def run_dev(cluster: DevCluster, *, as_json: bool) -> ExitCode:
    """Runs the cluster until this is cancelled, which is the ordinary way to end it."""
    try:
        async with cluster:
            info = info_of(cluster)
            if as_json:
                print(msgspec.json.encode(info).decode(), flush=True)
            else:
                _explain(info)
            await cluster.wait()
    except asyncio.CancelledError:
        return ExitCode.FINE
    return ExitCode.FINE


def _explain(info: DevInfo) -> None:
    console = Console(file=sys.stdout, highlight=False, markup=False)
    console.print(Text.assemble("cluster ", (info.address, "bold"), f" is ready, in {info.directory}"))
    for process in info.processes:
        port = f"port {process.port}" if process.port else ""
        console.print(f"  {process.role:<12} pid {process.pid:<8} {port:<11} {process.directory}")
    console.print(
        f"{info.drives} drives of {format_size(info.capacity_bytes)} at most, {info.replicas} replica(s).\n"
        f"Connect with\n"
        f"  export ESKER_CLUSTER={info.address}\n"
        f"Ctrl-C stops it."
    )


def make_cluster(
    directory: Path | None,
    *,
    drives: int | None,
    replicas: int | None,
    capacity_bytes: int | None,
    port: int | None,
    engine: str,
    ephemeral: bool,
    resync_bytes_per_s: int | None,
    scrub_bytes_per_s: int | None,
) -> DevCluster:
    """The cluster that the options ask for; an ephemeral one stands in a directory of its own below `directory`."""
    return DevCluster(
        None if ephemeral else directory or Path("esker-dev"),
        temporary_base=directory if ephemeral else None,
        drives=drives,
        replicas=replicas,
        capacity_bytes=capacity_bytes,
        port=port,
        engine=engine,
        resync_bytes_per_s=resync_bytes_per_s,
        scrub_bytes_per_s=scrub_bytes_per_s,
    )
