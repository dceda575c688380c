"""A node's supervisor: one worker process per drive, restarted with back-off when it dies, killed when it hangs.

Owns processes and nothing of their data. A worker that ends because of the user's set-up (exit code 2) is not
restarted: its reason is reported. One that cannot start at present (a port or a drive in use, a full disk, a silent
metadata server) is reported too, and started again like one that died. stdin of a worker is a pipe held here, so that
no worker outlives its supervisor.
"""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from esker.chunkserver.config import (
    POOL_BYTES_MIN,
    RESYNC_BYTES_PER_S_MIN,
    SCRUB_BYTES_PER_S_MIN,
    ChunkserverConfig,
    DriveConfig,
    WorkerConfig,
)
from esker.chunkserver.worker import EXIT_NOT_NOW, EXIT_USER_ERROR
from esker.runtime.logging import get_logger
from esker.wire.errors import UserError
from esker.wire.listen import unlink_own

log = get_logger("chunkserver.supervisor")

BACKOFF_MIN_S = 0.2
BACKOFF_MAX_S = 5.0
STEADY_S = 10.0
"""A worker that lived this long starts again with the shortest back-off."""
STOP_TIMEOUT_S = 15.0
LINE_BYTES_MAX = 65536


@dataclass(slots=True)
class WorkerState:
    """What the supervisor knows of one worker."""

    drive: DriveConfig
    pid: int = 0
    port: int = 0
    drive_id: str = ""
    socket: str = ""
    socket_inode: int = 0
    """Of the file as the worker made it; 0: it is not known."""
    engine: str = ""
    restarts: int = 0
    trouble: str = ""
    """Why its last start came to nothing although a later one may succeed; empty once it serves."""
    failure: str = ""
    """Why it will not be started again; empty while it will."""
    ready: asyncio.Event = field(default_factory=asyncio.Event)


class Supervisor:
    """Runs the workers of `config` until told to stop. `changed` is called when one became ready, failed for good,
    or has another trouble than before."""

    def __init__(self, config: ChunkserverConfig, changed: Callable[[WorkerState], None]) -> None:
        _check(config)
        self._config = config
        self._changed = changed
        self.workers = [WorkerState(drive, port=drive.port) for drive in config.drives]

    async def run(self, stop: asyncio.Event) -> bool:
        """Returns whether it ended because of `stop`; False: every worker failed for good."""
        _keep_descriptors()
        tasks = [asyncio.ensure_future(self._keep(worker, stop)) for worker in self.workers]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return stop.is_set()

    async def _keep(self, worker: WorkerState, stop: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()
        backoff_s = BACKOFF_MIN_S
        while not stop.is_set():
            started = loop.time()
            code, reason = await self._run_once(worker, stop)
            worker.ready.clear()
            if stop.is_set():
                return
            if code == EXIT_USER_ERROR:
                worker.failure = reason or "the worker refused its configuration"
                log.error("a worker cannot serve its drive", drive=worker.drive.directory, reason=worker.failure)
                self._changed(worker)
                return
            if loop.time() - started > STEADY_S:
                backoff_s = BACKOFF_MIN_S
            worker.restarts += 1
            self._tell_of_end(worker, code, reason, backoff_s)
            try:
                async with asyncio.timeout(backoff_s):
                    await stop.wait()
            except TimeoutError:
                backoff_s = min(BACKOFF_MAX_S, 2 * backoff_s)

    def _tell_of_end(self, worker: WorkerState, code: int, reason: str, delay_s: float) -> None:
        directory = worker.drive.directory
        if code == -signal.SIGBUS:
            reason = "its worker was killed by SIGBUS: the drive's index cannot be read; check the drive"
        elif code != EXIT_NOT_NOW:
            log.warning("a worker died; starting it again", drive=directory, exit_code=code, delay_s=delay_s)
            return
        if reason == worker.trouble:
            return  # said already: one line for each trouble, however often it is met
        log.warning("a drive cannot be served yet; trying again", drive=directory, reason=reason)
        worker.trouble = reason
        self._changed(worker)

    async def _run_once(self, worker: WorkerState, stop: asyncio.Event) -> tuple[int, str]:
        """Starts the worker and stays until it has ended; returns its exit code and what it said of the reason."""
        config = self._config
        worker_config = WorkerConfig(
            cluster=config.cluster,
            directory=worker.drive.directory,
            capacity_bytes=worker.drive.capacity_bytes,
            port=worker.port,
            node_id=config.node_id,
            host=config.host,
            engine=config.engine,
            pool_bytes=config.pool_bytes,
            join_timeout_s=config.join_timeout_s,
            keep_port=worker.drive.port != 0 and not worker.drive.port_is_wish,
            resync_bytes_per_s=config.resync_bytes_per_s,
            scrub_bytes_per_s=config.scrub_bytes_per_s,
        )
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "esker.chunkserver.worker",
            msgspec.json.encode(worker_config).decode(),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=LINE_BYTES_MAX,
        )
        worker.pid = process.pid
        listening = asyncio.ensure_future(self._listen(worker, process))
        stopping = asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait((listening, stopping), return_when="FIRST_COMPLETED")
        finally:
            stopping.cancel()
            assert process.stdin is not None
            process.stdin.close()
            code = await _end(process)
            listening.cancel()
            (heard,) = await asyncio.gather(listening, return_exceptions=True)
            _remove_socket(worker)
        return code, heard if isinstance(heard, str) else ""

    async def _listen(self, worker: WorkerState, process: asyncio.subprocess.Process) -> str:
        """Follows the worker's lines until it closes its stdout, or kills it when none comes.

        Returns the reason that it gave for its end, if it did.
        """
        reason = ""
        assert process.stdout is not None
        while True:
            try:
                async with asyncio.timeout(self._config.unresponsive_s + self._config.join_timeout_s):
                    line = await process.stdout.readline()
            except TimeoutError:
                log.error("a worker gives no sign of life; killing it", drive=worker.drive.directory, pid=worker.pid)
                process.kill()
                return reason
            if not line:
                return reason
            event = json.loads(line)
            if event["event"] == "ready":
                worker.port, worker.drive_id = event["port"], event["drive_id"]
                worker.socket, worker.engine = event["socket"], event["engine"]
                with contextlib.suppress(OSError):
                    worker.socket_inode = os.stat(worker.socket).st_ino
                worker.trouble = ""
                worker.ready.set()
                self._changed(worker)
            elif event["event"] == "failed":
                reason = event["reason"]


async def _end(process: asyncio.subprocess.Process) -> int:
    """Waits for a process whose stdin has been closed; kills it when it does not end."""
    try:
        async with asyncio.timeout(STOP_TIMEOUT_S):
            return await process.wait()
    except TimeoutError:
        process.kill()
        return await process.wait()


def _remove_socket(worker: WorkerState) -> None:
    """What a worker that was killed left: nobody would, if the drive gets another identity."""
    if worker.socket_inode:
        with contextlib.suppress(OSError):
            unlink_own(worker.socket, worker.socket_inode)
        worker.socket_inode = 0


def _keep_descriptors() -> None:
    """Makes sure that workers inherit nothing of this process but stderr.

    uvloop leaves a child inheritable copies of its stdin and stdout. In a worker they would keep the supervisor's own
    pipes open beyond its death, and who reads them would not learn of it.
    """
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2:
            with contextlib.suppress(OSError):  # the listing's own descriptor is closed by now
                os.set_inheritable(int(name), False)


def _check(config: ChunkserverConfig) -> None:
    if not config.drives:
        raise UserError("no drive is given; give at least one directory with --drive")
    directories = [os.path.realpath(drive.directory) for drive in config.drives]
    for directory in directories:
        if directories.count(directory) > 1:
            raise UserError(f"{directory} is given twice; every drive needs a directory of its own")
    if config.resync_bytes_per_s < RESYNC_BYTES_PER_S_MIN:
        raise UserError(
            f"a resync rate of {config.resync_bytes_per_s} bytes per second; needed: at least {RESYNC_BYTES_PER_S_MIN}"
        )
    if config.scrub_bytes_per_s and config.scrub_bytes_per_s < SCRUB_BYTES_PER_S_MIN:
        raise UserError(
            f"a scrub rate of {config.scrub_bytes_per_s} bytes per second; needed: at least {SCRUB_BYTES_PER_S_MIN}, "
            f"or 0 for scrubbing on request only"
        )
    if config.pool_bytes < POOL_BYTES_MIN:
        raise UserError(f"a pool of {config.pool_bytes} bytes; needed: at least {POOL_BYTES_MIN}")
