"""A whole cluster on this machine: one metadata server and one chunk server with N drives, as child processes.

Owns: starting them in order, waiting until blocks can be stored, starting again what dies, stopping all. An `async
with` block is the cluster's life; leaving it, for whatever reason, ends every process and, where the directory was
temporary, removes it.
"""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import TracebackType

import msgspec

from esker.runtime.logging import get_logger
from esker.tools.child import Child, T, decode_answer
from esker.tools.child_errors import ChildEnded
from esker.tools.dev_directory import DevDirectory, free_port, merged_state
from esker.tools.dev_store import remove_metadata, store_arguments
from esker.tools.inspect_cluster import view_cluster
from esker.wire.errors import DeadlineExceeded, EskerError, UserError
from esker.wire.types import Chain, Replica, TargetState

log = get_logger("tools.dev")

READY_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 25.0
TROUBLE_PATIENCE_S = 20.0
"""How long a first start waits for the trouble of a drive to pass, such as an owner that is still about to end."""
RESTART_DELAY_S = 0.5
RESTART_DELAY_MAX_S = 5.0
STEADY_S = 10.0
"""A process that lived this long is started again with the shortest delay."""
LOOK_INTERVAL_S = 0.05
HOST = "127.0.0.1"


class MetaUp(msgspec.Struct):
    """Line of `esker meta --json`."""

    host: str
    port: int
    cluster_id: str


class WorkerUp(msgspec.Struct):
    """Line of `esker chunkserver --json`: a worker serves, cannot start yet, or failed for good."""

    directory: str
    pid: int
    port: int
    drive_id: str
    engine: str
    trouble: str
    failure: str


class ProcessInfo(msgspec.Struct, frozen=True):
    """One process of the cluster. `port` 0: it does not listen."""

    role: str
    """`meta`, `chunkserver` (the supervisor) or `worker`."""
    pid: int
    port: int
    directory: str
    drive_id: str = ""


class DevCluster:
    """The cluster. Raises `UserError` on entering where it cannot be as asked.

    `directory` None: a temporary one below `temporary_base`. Figures left None are those of the directory's earlier
    start, else 4 drives with 10 GiB each and 2 replicas. Rates left None are `esker chunkserver`'s; a scrub at 0 runs
    on request only.
    """

    def __init__(
        self,
        directory: Path | None = None,
        *,
        drives: int | None = None,
        replicas: int | None = None,
        capacity_bytes: int | None = None,
        port: int | None = None,
        engine: str = "auto",
        temporary_base: Path | None = None,
        needed_bytes: int = 0,
        resync_bytes_per_s: int | None = None,
        scrub_bytes_per_s: int | None = None,
    ) -> None:
        self._path = directory
        self._asked = (drives, replicas, capacity_bytes)
        self._port = port
        self._engine = engine
        self._temporary_base = temporary_base
        self._needed_bytes = needed_bytes
        self._rates = {"--resync-rate": resync_bytes_per_s, "--scrub-rate": scrub_bytes_per_s}
        self._children: dict[str, Child] = {}
        self._keepers: list[asyncio.Task[None]] = []
        self._workers: dict[str, WorkerUp] = {}
        self._troubles: dict[str, str] = {}
        self._changed = asyncio.Event()
        self._meta_up = MetaUp(HOST, 0, "")
        self._meta_pid = 0

    async def __aenter__(self) -> "DevCluster":
        claim = DevDirectory.temporary(self._temporary_base) if self._path is None else DevDirectory.claim(self._path)
        self.directory = claim
        try:
            claim.check_room(self._needed_bytes)
            self.state = merged_state(claim.load(), *self._asked)
            async with asyncio.timeout(READY_TIMEOUT_S):
                await self._start()
        except TimeoutError:
            await self._stop()
            reasons = "".join(f"; {directory}: {trouble}" for directory, trouble in self._troubles.items())
            raise DeadlineExceeded(f"the cluster was not ready within {READY_TIMEOUT_S:g} s{reasons}") from None
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stop()

    @property
    def address(self) -> str:
        """For `--cluster`: where the metadata server listens."""
        return f"{self._meta_up.host}:{self._meta_up.port}"

    @property
    def cluster_id(self) -> str:
        return self._meta_up.cluster_id

    @property
    def drive_directories(self) -> list[str]:
        """Of the drives, in order."""
        return [str(self.directory.drive(number)) for number in range(self.state.drives)]

    def processes(self) -> list[ProcessInfo]:
        """Every process as it is now: metadata server, supervisor, workers in the drives' order."""
        supervisor = self._children["chunkserver"]
        return [
            ProcessInfo("meta", self._meta_pid, self._meta_up.port, str(self.directory.meta)),
            ProcessInfo("chunkserver", supervisor.pid, 0, str(self.directory.path)),
            *(
                ProcessInfo("worker", worker.pid, worker.port, directory, worker.drive_id)
                for directory in self.drive_directories
                if (worker := self._workers.get(directory)) is not None
            ),
        ]

    async def wait(self) -> None:
        """Stays while the cluster can be kept running. Raises what made that impossible."""
        while True:
            self._check_keepers()
            self._changed.clear()
            await self._changed.wait()

    def kill_worker(self, number: int) -> int:
        """kill -9 of a drive's worker; returns its pid. Its supervisor starts another."""
        pid = self._workers[self.drive_directories[number]].pid
        os.kill(pid, signal.SIGKILL)
        return pid

    def kill_meta(self) -> int:
        """kill -9 of the metadata server; returns its pid. Another is started."""
        self._children["meta"].kill()
        return self._meta_pid

    async def restarted(self, pid: int, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Waits until another process stands in for the one that had `pid`. Raises `DeadlineExceeded`."""
        try:
            async with asyncio.timeout(timeout_s):
                while any(process.pid == pid for process in self.processes()):
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise DeadlineExceeded(f"nothing took the place of process {pid} within {timeout_s:g} s") from None

    async def settled(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Waits until every replica of every chain serves. Raises `DeadlineExceeded`."""
        await self._chains(lambda chain: all(_serves(replica) for replica in chain.replicas), timeout_s)

    async def _chains(self, asked: Callable[[Chain], bool], timeout_s: float) -> None:
        """Waits until all chains are as `asked`."""
        try:
            async with asyncio.timeout(timeout_s):
                # Nothing tells when they change.
                while not all(asked(chain) for chain in (await view_cluster(self.address)).routing.chains):  # noqa: ASYNC110
                    await asyncio.sleep(LOOK_INTERVAL_S)
        except TimeoutError:
            raise DeadlineExceeded(f"the chains' replicas did not all serve within {timeout_s:g} s") from None

    async def _start(self) -> None:
        await self._start_first_meta()
        self._keep("meta", lambda: self._start_meta(self._meta_up.port), self._drain)
        kept = self.state.worker_ports
        # Ports kept for another number of drives say nothing about these.
        fit = len(kept) == self.state.drives
        await self._start_chunkserver([free_port(port) for port in kept] if fit else [0] * self.state.drives)
        while len(self._workers) < self.state.drives:
            worker = await self._next_worker()
            if worker.failure:
                raise UserError(f"{worker.directory} cannot be served: {worker.failure}")
            self._take_worker(worker)
        self._keep("chunkserver", lambda: self._start_chunkserver(self._worker_ports()), self._follow_workers)
        view = await view_cluster(self.address)
        if not view.routing.chains:
            raise EskerError("all drives have joined, but the metadata server made no chains")
        await self._chains(lambda chain: any(_serves(replica) for replica in chain.replicas), READY_TIMEOUT_S)
        self.directory.save(
            msgspec.structs.replace(self.state, meta_port=self._meta_up.port, worker_ports=tuple(self._worker_ports()))
        )

    async def _next_worker(self) -> WorkerUp:
        """What the supervisor says next. Raises `UserError` where the trouble of some drive does not pass."""
        try:
            line = await self._children["chunkserver"].line(TROUBLE_PATIENCE_S if self._troubles else None)
        except DeadlineExceeded:
            reasons = "; ".join(f"{directory}: {trouble}" for directory, trouble in self._troubles.items())
            raise UserError(f"not every drive can be served: {reasons}") from None
        return decode_answer(line, WorkerUp)

    async def _start_first_meta(self) -> None:
        """On the port that was asked for; else on the directory's own or the usual one, where nobody has it."""
        if self._port is not None:
            await self._start_meta(self._port)
            return
        wanted = 0 if self._path is None else free_port(self.state.meta_port)
        try:
            await self._start_meta(wanted)
        except UserError:
            if wanted == 0:
                raise
            await self._start_meta(0)  # somebody took the port in the meantime (or this fails the same way)

    async def _start_meta(self, port: int) -> None:
        arguments = [*store_arguments(self.directory.meta), "--host", HOST, "--port", str(port)]
        arguments += ["--drives", str(self.state.drives), "--replicas", str(self.state.replicas)]
        child = await self._start_child("meta", arguments)
        self._meta_up = await _line(child, MetaUp)
        self._meta_pid = child.pid
        self._changed.set()

    async def _start_chunkserver(self, ports: list[int]) -> None:
        arguments = ["--cluster", self.address, "--capacity", str(self.state.capacity_bytes)]
        arguments += ["--node-id", "dev", "--host", HOST, "--engine", self._engine]
        arguments += ["--any-port"]
        for option, rate in self._rates.items():
            arguments += [] if rate is None else [option, str(rate)]
        for directory, port in zip(self.drive_directories, ports, strict=True):
            arguments += ["--drive", directory, "--port", str(port)]
        await self._start_child("chunkserver", arguments)

    async def _start_child(self, name: str, arguments: list[str]) -> Child:
        # Their stderr is the user's terminal: what goes as planned is not said there, unless asked for.
        environment = {"ESKER_LOG_LEVEL": "warning", **os.environ}
        child = await Child.start(name, ["-m", "esker", name, "--json", "--watch-stdin", *arguments], environment)
        self._children[name] = child
        return child

    def _worker_ports(self) -> list[int]:
        return [self._workers[directory].port for directory in self.drive_directories]

    def _keep(
        self, name: str, start: Callable[[], Awaitable[None]], follow: Callable[[Child], Awaitable[None]]
    ) -> None:
        """Starts the process again whenever it ends, until the cluster stops or `start` raises `UserError`."""

        async def keep() -> None:
            loop = asyncio.get_running_loop()
            delay_s = RESTART_DELAY_S
            while True:
                started = loop.time()
                await follow(self._children[name])
                if loop.time() - started > STEADY_S:
                    delay_s = RESTART_DELAY_S
                log.warning("a process of the cluster ended; starting it again", process=name, delay_s=delay_s)
                await asyncio.sleep(delay_s)
                delay_s = min(RESTART_DELAY_MAX_S, 2 * delay_s)
                try:
                    await start()
                except UserError:
                    raise
                except EskerError as error:  # it did not get as far as serving; its child is followed to its end
                    log.warning("a process of the cluster did not start", process=name, reason=str(error))

        task = asyncio.ensure_future(keep())
        task.add_done_callback(lambda _: self._changed.set())
        self._keepers.append(task)

    def _check_keepers(self) -> None:
        """Raises what ended a keeper."""
        for task in self._keepers:
            if task.done():
                task.result()

    async def _drain(self, child: Child) -> None:
        """Waits for the child's end."""
        await child.wait()

    async def _follow_workers(self, child: Child) -> None:
        """Takes over what the supervisor says of its workers, until its process ends (its pipe may be held open)."""
        listening = asyncio.ensure_future(self._take_workers(child))
        ended = asyncio.ensure_future(child.wait())
        try:
            await asyncio.wait((listening, ended), return_when="FIRST_COMPLETED")
            if listening.done():
                listening.result()
            await ended
        finally:
            listening.cancel()
            ended.cancel()
            await asyncio.gather(listening, ended, return_exceptions=True)

    async def _take_workers(self, child: Child) -> None:
        while True:
            try:
                self._take_worker(await _line(child, WorkerUp))
            except ChildEnded:
                return

    def _take_worker(self, worker: WorkerUp) -> None:
        if worker.trouble:
            self._troubles[worker.directory] = worker.trouble
            return  # the supervisor goes on trying
        self._troubles.pop(worker.directory, None)
        self._workers[worker.directory] = worker
        self._changed.set()

    async def _stop(self) -> None:
        for task in self._keepers:
            task.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        self._keepers.clear()
        # The drives first: what they still have to tell the metadata server finds it there.
        for name in ("chunkserver", "meta"):
            child = self._children.pop(name, None)
            if child is not None:
                await child.stop(STOP_TIMEOUT_S)
        try:
            if self._path is None:
                await remove_metadata(self.directory.meta)
        finally:
            self.directory.close()


def _serves(replica: Replica) -> bool:
    return replica.state is TargetState.SERVING


async def _line(child: Child, kind: type[T]) -> T:
    """The child's next line, whenever it comes. Raises the child's own failure, or `ChildEnded`."""
    return decode_answer(await child.line(timeout_s=None), kind)
