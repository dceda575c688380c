"""A real worker process beside a metadata server of this process."""

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from esker.chunkserver.config import WorkerConfig
from esker.meta.main import MetaConfig, ServerAddress, serve
from esker.wire.limits import MIB
from esker.wire.rpc_client import TcpAddress, UnixAddress

from ..waiting import WAIT_S
from .raw_client import RawClient


@asynccontextmanager
async def metadata(directory: Path, drives: int = 1, replicas: int = 1) -> AsyncIterator[str]:
    """A metadata server; its `host:port`."""
    stop = asyncio.Event()
    ready: asyncio.Future[ServerAddress] = asyncio.get_running_loop().create_future()
    config = MetaConfig(store=f"embedded:{directory}", drives_expected=drives, replicas=replicas)
    task = asyncio.create_task(serve(config, ready.set_result, stop))
    await asyncio.wait([task, ready], return_when=asyncio.FIRST_COMPLETED)
    try:
        if task.done():
            task.result()
        address = ready.result()
        yield f"{address.host}:{address.port}"
    finally:
        stop.set()
        await task


def worker_config(cluster: str, directory: Path, **changes: Any) -> WorkerConfig:
    config = WorkerConfig(
        cluster=cluster,
        directory=str(directory),
        capacity_bytes=256 * MIB,
        port=0,
        node_id="here",
        host="127.0.0.1",
        engine="auto",
        pool_bytes=16 * MIB,
        join_timeout_s=5.0,
        keep_port=False,
    )
    return msgspec.structs.replace(config, **changes)


class WorkerProcess:
    """A worker, started as its supervisor starts it."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.pid = process.pid
        self.ready: dict[str, Any] = {}

    @classmethod
    async def start(cls, config: WorkerConfig) -> "WorkerProcess":
        """Starts it; `first_line` says what came of it."""
        arguments = ["-m", "esker.chunkserver.worker", msgspec.json.encode(config).decode()]
        return cls(
            await asyncio.create_subprocess_exec(
                sys.executable,
                *arguments,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
        )

    async def line(self) -> dict[str, Any]:
        """The next line that it says."""
        assert self._process.stdout is not None
        async with asyncio.timeout(WAIT_S):
            line = await self._process.stdout.readline()
        assert line, f"the worker ended: {(await self._process.communicate())[1].decode()}"
        return json.loads(line)

    async def logs(self, text: str) -> None:
        """Waits until a line with `text` stands in its log."""
        assert self._process.stderr is not None
        async with asyncio.timeout(WAIT_S):
            while text not in (line := (await self._process.stderr.readline()).decode()):
                assert line, f"the worker ended without logging {text!r}"

    @property
    def socket(self) -> UnixAddress:
        return UnixAddress(self.ready["socket"])

    @property
    def tcp(self) -> TcpAddress:
        return TcpAddress(self.ready["host"], self.ready["port"])

    async def client(self, *, tcp: bool = False) -> RawClient:
        return await RawClient.connect(self.tcp if tcp else self.socket)

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    async def ended(self) -> tuple[int, str]:
        """Its exit code and what it logged, once it has ended by itself."""
        async with asyncio.timeout(WAIT_S):
            _, log = await self._process.communicate()
            return await self._process.wait(), log.decode()

    async def stop(self) -> tuple[int, str]:
        """Ends its stdin, as the supervisor does; see `ended`."""
        if self._process.returncode is None:
            assert self._process.stdin is not None
            self._process.stdin.close()
        return await self.ended()

    async def destroy(self) -> None:
        """kill -9, whatever state it is in."""
        if self._process.returncode is None:
            self._process.kill()
        await self._process.communicate()
        if self.ready:
            # A worker that was killed leaves its socket for its next life, which there is not.
            with suppress(FileNotFoundError):
                os.unlink(self.ready["socket"])

    # What the kernel knows of it

    def maps(self, name: str) -> int:
        """How many mappings of files called `name` it has."""
        return Path(f"/proc/{self.pid}/maps").read_text(encoding="ascii").count(name)

    def open_files(self, name: str) -> int:
        """How many open descriptors of files called `name` it has."""
        links = []
        for fd in os.listdir(f"/proc/{self.pid}/fd"):
            try:
                links.append(os.readlink(f"/proc/{self.pid}/fd/{fd}"))
            except FileNotFoundError:
                continue
        return sum(name in link for link in links)

    def memory_bytes(self) -> int:
        """Its own memory: RssAnon. Pages of clients' pools that it reads into count elsewhere."""
        status = Path(f"/proc/{self.pid}/status").read_text(encoding="ascii")
        match = re.search(r"RssAnon:\s+(\d+) kB", status)
        assert match is not None
        return int(match[1]) * 1024


@asynccontextmanager
async def worker(cluster: str, directory: Path, **changes: Any) -> AsyncIterator[WorkerProcess]:
    """A worker that serves. At the end it must stop cleanly, unless it was ended before."""
    process = await WorkerProcess.start(worker_config(cluster, directory, **changes))
    try:
        process.ready = await process.line()
        assert process.ready["event"] == "ready", process.ready
        yield process
        if process._process.returncode is None:
            code, log = await process.stop()
            assert code == 0, log
            assert "Traceback" not in log, log
    finally:
        await process.destroy()


@asynccontextmanager
async def one_drive(directory: Path, **changes: Any) -> AsyncIterator[WorkerProcess]:
    """A cluster of one drive."""
    async with metadata(directory / "meta") as cluster, worker(cluster, directory / "drive", **changes) as process:
        yield process
