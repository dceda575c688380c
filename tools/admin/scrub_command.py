"""`esker admin scrub`: has drives verify everything that they hold, and tells how far they are.

Exit codes: `DIFFERENCES` where chunks are damaged and have not been repaired; `DEGRADED` where a worker did not answer;
`AGAIN` where one was not through within the time that was given; else `FINE`.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from esker.tools.admin.link import ClusterLink
from esker.tools.admin.output import print_json, print_line, print_table, shown_size, shown_time
from esker.tools.exit_codes import ExitCode
from esker.tools.progress import progress
from esker.wire.errors import EskerError, UserError
from esker.wire.messages import ClusterStatus, ClusterStatusReply, Method
from esker.wire.scrub_messages import Scrub, ScrubPass, ScrubReply
from esker.wire.types import Worker

LOOK_INTERVAL_S = 0.5


@dataclass(slots=True)
class DriveScrub:
    """One drive's scrubbing, as far as its worker told."""

    worker: Worker
    reply: ScrubReply | None = None
    trouble: str = ""
    """Why the worker did not answer the last time that it was asked."""
    awaited: int = 0
    """The number of the pass that was asked for; 0: none was."""

    @property
    def over(self) -> bool:
        """Whether the pass that was asked for has ended."""
        last = self.reply.last if self.reply is not None else None
        return last is not None and last.number >= self.awaited

    def figures(self) -> ScrubPass | None:
        """Of the pass that tells most: the one under way, else the last one."""
        return None if self.reply is None else self.reply.present or self.reply.last

    def unrepaired(self) -> int:
        """Damaged chunks that were seen and not repaired, in the pass under way or else in the last one."""
        figures = self.figures()
        return 0 if figures is None else figures.lost + figures.waiting


async def run_scrub(
    cluster: str, names: Sequence[str], *, start: bool, wait_s: float | None, rate_bytes_per_s: int, as_json: bool
) -> ExitCode:
    """Starts (or goes on with) a pass on the drives and nodes with these names (none: on all), unless `start` is false;
    waits so long for their ends; prints how far all are. Raises `UserError`, `EskerError` (no metadata server answers).
    """
    async with ClusterLink(cluster) as link:
        status = await link.meta(Method.CLUSTER_STATUS, ClusterStatus(), ClusterStatusReply)
        drives = [DriveScrub(worker) for worker in chosen([each.worker for each in status.workers], names)]
        await asyncio.gather(*(_ask(link, drive, Scrub(start, rate_bytes_per_s)) for drive in drives))
        if start:
            for drive in drives:
                if drive.reply is not None and drive.reply.present is not None:
                    drive.awaited = drive.reply.present.number
        if start and wait_s is not None:
            await _wait(link, drives, wait_s)
    code = exit_code(drives, waited=start and wait_s is not None)
    if as_json:
        print_json({"drives": [_json(drive) for drive in drives], "exit_code": int(code)})
    else:
        _explain(drives, code)
    return code


def chosen(workers: Sequence[Worker], names: Sequence[str]) -> list[Worker]:
    """The workers of the drives and nodes with these names, node by node; all without names. Raises `UserError`."""
    for name in names:
        if all(name not in (worker.drive_id, worker.node_id) for worker in workers):
            raise UserError(f"there is no drive and no node called {name!r}; esker admin nodes lists them")
    found = [worker for worker in workers if not names or worker.drive_id in names or worker.node_id in names]
    return sorted(found, key=lambda worker: (worker.node_id, worker.drive_id))


def exit_code(drives: Sequence[DriveScrub], *, waited: bool) -> ExitCode:
    """See the module."""
    if any(drive.unrepaired() for drive in drives):
        return ExitCode.DIFFERENCES
    if any(drive.trouble for drive in drives):
        return ExitCode.DEGRADED
    return ExitCode.AGAIN if waited and not all(drive.over for drive in drives) else ExitCode.FINE


async def _ask(link: ClusterLink, drive: DriveScrub, body: Scrub) -> None:
    try:
        drive.reply = await link.worker(drive.worker, Method.SCRUB, body, ScrubReply)
        drive.trouble = ""
    except EskerError as error:
        drive.trouble = " ".join(str(error).split())


async def _wait(link: ClusterLink, drives: Sequence[DriveScrub], wait_s: float) -> None:
    """Until all are through that answer, or the time is up. A worker that was restarted goes on with its pass."""
    total_bytes = sum(drive.reply.stored_bytes for drive in drives if drive.reply is not None)
    loop = asyncio.get_running_loop()
    end_s = loop.time() + wait_s
    with progress("scrubbing", max(1, total_bytes)) as advance:
        while loop.time() < end_s:
            left = [drive for drive in drives if drive.awaited and not drive.over]
            seen = [figures for drive in drives if (figures := drive.figures()) is not None]
            mismatches = sum(figures.mismatches for figures in seen)
            advance(min(total_bytes, sum(figures.data_bytes for figures in seen)), f"{mismatches} mismatches")
            if not left:
                return
            await asyncio.sleep(min(LOOK_INTERVAL_S, max(0.0, end_s - loop.time())))
            await asyncio.gather(*(_ask(link, drive, Scrub()) for drive in left))


def _json(drive: DriveScrub) -> dict[str, Any]:
    reply = drive.reply
    return {
        "drive_id": drive.worker.drive_id,
        "node_id": drive.worker.node_id,
        "answered": not drive.trouble,
        "trouble": drive.trouble,
        "present": _pass_json(None if reply is None else reply.present),
        "last": _pass_json(None if reply is None else reply.last),
        "stored_bytes": 0 if reply is None else reply.stored_bytes,
        "rate_bytes_per_s": 0 if reply is None else reply.rate_bytes_per_s,
        "next_ms": 0 if reply is None else reply.next_ms,
        "unrepaired": drive.unrepaired(),
    }


def _pass_json(figures: ScrubPass | None) -> dict[str, Any] | None:
    return None if figures is None else {field: getattr(figures, field) for field in figures.__struct_fields__}


def _explain(drives: Sequence[DriveScrub], code: ExitCode) -> None:
    columns = ["node", "drive", "pass", "#chunks", "#read", "#mismatches", "#repaired", "#lost", "#waiting", "ended"]
    print_table(columns, [_row(drive) for drive in drives])
    for drive in drives:
        if drive.trouble:
            print_line(f"{drive.worker.drive_id} did not answer: {drive.trouble}")
    if code is ExitCode.DIFFERENCES:
        count = sum(drive.unrepaired() for drive in drives)
        print_line(f"{count} damaged chunks have not been repaired; the workers' logs name them")


def _row(drive: DriveScrub) -> tuple[object, ...]:
    worker, figures = drive.worker, drive.figures()
    if figures is None:
        return (worker.node_id, worker.drive_id, "no answer" if drive.trouble else "none yet", *[""] * 7)
    assert drive.reply is not None, "figures came with it"
    ended = shown_time(figures.ended_ms) if figures.ended_ms else _share(figures, drive.reply.stored_bytes)
    return (
        worker.node_id,
        worker.drive_id,
        figures.number,
        figures.chunks,
        shown_size(figures.data_bytes),
        figures.mismatches,
        figures.repaired,
        figures.lost,
        figures.waiting,
        ended,
    )


def _share(figures: ScrubPass, stored_bytes: int) -> str:
    """How much of the pass is done; chunks are shorter than their slots, so this is a little less than it is."""
    return f"under way, {min(99, 100 * figures.data_bytes // max(1, stored_bytes))} %"
