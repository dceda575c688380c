"""A cluster whose nodes have networks of their own, so that a test can cut them off from each other.

Each node is a Linux network namespace on a bridge; the test itself, with its clients, stands on the bridge. A node
also has a directory for Unix sockets that nobody else sees, so that everything between nodes goes over TCP. Packets
that a cut swallows are gone without a word, as behind a broken switch: nobody is told that a peer cannot be reached.

Needs root and `ip` (iproute2); `unavailable()` says what is missing.
"""

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from esker.tools.inspect_cluster import ClusterView, view_cluster
from esker.wire.types import TargetState

from ..waiting import until
from .clusters import CAPACITY_BYTES

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 20.0
META_PORT = 7100
_BRIDGE_ADDRESS = 254


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True, timeout=10)


def _try_ip(*arguments: str) -> None:
    """`_ip` on what may not have come about."""
    with contextlib.suppress(subprocess.CalledProcessError):
        _ip(*arguments)


def unavailable() -> str:
    """Why there can be no such cluster here; empty: there can be one."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return "needs root and ip (iproute2), to give each node a network of its own; run the tests as root"
    name = f"esk{os.getpid()}t"
    try:
        _ip("netns", "add", name)
        try:
            _ip("link", "add", f"{name}b", "type", "bridge")
            _ip("link", "del", f"{name}b")
        finally:
            _ip("netns", "del", name)
    except subprocess.CalledProcessError as error:
        return f"network namespaces are not allowed here: {error.stderr.strip()}"
    return ""


class Node:
    """One network namespace and the processes in it."""

    def __init__(self, cluster: "NetworkCluster", number: int) -> None:
        self.name = f"{cluster.prefix}n{number}"
        self.link = f"{cluster.prefix}v{number}"
        self.address = f"{cluster.network}.{number}"
        self._sockets = cluster.directory / f"run{number}"
        self._bridge = cluster.bridge
        self._processes: list[asyncio.subprocess.Process] = []

    def make(self) -> None:
        self._sockets.mkdir()
        _ip("netns", "add", self.name)
        _ip("link", "add", self.link, "type", "veth", "peer", "name", "eth0", "netns", self.name)
        _ip("link", "set", self.link, "master", self._bridge, "up")
        _ip("-n", self.name, "addr", "add", f"{self.address}/24", "dev", "eth0")
        _ip("-n", self.name, "link", "set", "eth0", "up")
        _ip("-n", self.name, "link", "set", "lo", "up")

    def remove(self) -> None:
        _try_ip("netns", "del", self.name)

    async def start(self, *arguments: str) -> asyncio.subprocess.Process:
        """An `esker` process here; its stdout is a pipe, and it ends with its stdin."""
        hidden = 'mount -t tmpfs esk-sockets "$XDG_RUNTIME_DIR" && exec "$@"'
        process = await asyncio.create_subprocess_exec(
            *("ip", "netns", "exec", self.name, "sh", "-c", hidden, "sh"),
            *(sys.executable, "-m", "esker", *arguments, "--json", "--watch-stdin"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "XDG_RUNTIME_DIR": str(self._sockets), "ESKER_LOG_LEVEL": "error"},
        )
        self._processes.append(process)
        return process

    async def stop(self) -> None:
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.close()
        for process in self._processes:
            try:
                async with asyncio.timeout(STOP_TIMEOUT_S):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()

    def route(self, action: str, kind: str, address: str) -> None:
        _ip("-n", self.name, "route", action, kind, f"{address}/32")


class NetworkCluster:
    """One metadata server on a node of its own, and chunk servers of one drive each. Use `network_cluster`."""

    def __init__(self, directory: Path, drives: int, replicas: int) -> None:
        self.directory = directory
        self.prefix = f"esk{os.getpid() % 100_000}"
        self.network = f"10.213.{os.getpid() % 250}"
        self.bridge = f"{self.prefix}b"
        self._drives = drives
        self._replicas = replicas
        self.meta = Node(self, 1)
        self.nodes = [Node(self, 10 + number) for number in range(drives)]

    @property
    def address(self) -> str:
        """For `--cluster`."""
        return f"{self.meta.address}:{META_PORT}"

    async def start(self) -> None:
        _ip("link", "add", self.bridge, "type", "bridge")
        _ip("addr", "add", f"{self.network}.{_BRIDGE_ADDRESS}/24", "dev", self.bridge)
        _ip("link", "set", self.bridge, "up")
        for node in (self.meta, *self.nodes):
            node.make()
        meta = await self.meta.start(
            *("meta", "--store", f"embedded:{self.directory / 'meta'}", "--host", self.meta.address),
            *("--port", str(META_PORT), "--insecure"),
            *("--drives", str(self._drives), "--replicas", str(self._replicas)),
        )
        await _line(meta)
        servers = [
            await node.start(
                *("chunkserver", "--cluster", self.address, "--drive", str(self.directory / f"drive{number}")),
                *("--capacity", str(CAPACITY_BYTES), "--host", node.address, "--node-id", f"node{number}"),
                "--insecure",
            )
            for number, node in enumerate(self.nodes)
        ]
        for server in servers:
            await _line(server)
        await until(self.settled, "all replicas serve", START_TIMEOUT_S)

    async def stop(self) -> None:
        for node in (*self.nodes, self.meta):
            await node.stop()
        for node in (*self.nodes, self.meta):
            node.remove()
        _try_ip("link", "del", self.bridge)

    async def view(self, *, counters: bool = False) -> ClusterView:
        return await view_cluster(self.address, counters=counters)

    async def settled(self) -> bool:
        """Whether there are chains and all their replicas serve."""
        chains = (await self.view()).routing.chains
        return bool(chains) and all(
            replica.state is TargetState.SERVING for chain in chains for replica in chain.replicas
        )

    async def serving(self, node: Node) -> bool:
        """Whether some replica on the node serves, as far as everyone is told."""
        routing = (await self.view()).routing
        drive_id = next(worker.drive_id for worker in routing.workers if worker.host == node.address)
        return any(
            replica.drive_id == drive_id and replica.state is TargetState.SERVING
            for chain in routing.chains
            for replica in chain.replicas
        )

    async def neighbours(self) -> tuple[Node, Node]:
        """The nodes of a chain's first two serving replicas."""
        routing = (await self.view()).routing
        hosts = {worker.drive_id: worker.host for worker in routing.workers}
        first, second, *_ = routing.chains[0].replicas
        nodes = {node.address: node for node in self.nodes}
        return nodes[hosts[first.drive_id]], nodes[hosts[second.drive_id]]

    @contextmanager
    def isolated(self, node: Node) -> Iterator[None]:
        """Within it nothing reaches the node or comes from it."""
        _ip("link", "set", node.link, "down")
        try:
            yield
        finally:
            _ip("link", "set", node.link, "up")

    @contextmanager
    def cut(self, node: Node, other: Node) -> Iterator[None]:
        """Within it neither of the two reaches the other; both reach everyone else."""
        with self.deaf(node, other), self.deaf(other, node):
            yield

    @contextmanager
    def deaf(self, node: Node, speaker: Node) -> Iterator[None]:
        """Within it nothing that `speaker` sends reaches `node`; the other direction works."""
        speaker.route("add", "blackhole", node.address)
        try:
            yield
        finally:
            speaker.route("del", "blackhole", node.address)


@asynccontextmanager
async def network_cluster(directory: Path, *, drives: int = 3, replicas: int = 3) -> AsyncIterator[NetworkCluster]:
    """The cluster; all replicas serve. Nothing of it is left at the end."""
    cluster = NetworkCluster(directory, drives, replicas)
    try:
        await cluster.start()
        yield cluster
    finally:
        await cluster.stop()


async def _line(process: asyncio.subprocess.Process) -> dict[str, Any]:
    """The first line that the process says: it serves."""
    assert process.stdout is not None
    async with asyncio.timeout(START_TIMEOUT_S):
        line = await process.stdout.readline()
    assert line, f"process {process.pid} ended with {await process.wait()}"
    said = json.loads(line)
    assert isinstance(said, dict)
    assert not said.get("failure"), said
    return said
