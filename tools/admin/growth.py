"""`esker admin replace-drive`, `drain`, `expand`, `remove-node` and `balance`.

The plan is made here from the cluster as its manager sees it, shown, and handed to a metadata server, which takes it
only if the cluster has not changed meanwhile; then it is made anew. What follows goes on in the cluster by itself:
waiting for it (`growth_watch.py`) only looks on.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TypeVar

from esker.meta import keys
from esker.meta.imbalance import imbalance
from esker.meta.records import RemovedDrive, unpack
from esker.meta.replanning import (
    Cluster,
    KnownDrive,
    TableGrowth,
    plan_drain,
    plan_expansion,
    plan_replacement,
    plan_staying,
)
from esker.tools.admin.cluster_figures import ClusterFigures
from esker.tools.admin.growth_shown import (
    balance_figures,
    growth_figures,
    leftovers,
    moved,
    notes_of,
    passed_over,
    show_outcome,
    show_plan,
    sites_of,
    tables_of,
)
from esker.tools.admin.growth_watch import Outcome, watch
from esker.tools.admin.link import ClusterLink
from esker.tools.admin.output import print_json, print_line, print_table, shown_size
from esker.tools.exit_codes import ExitCode
from esker.wire.admin_messages import (
    Expand,
    ExpandReply,
    ForgetDrives,
    GrowthReply,
    MetaPage,
    MetaPageReply,
    SetGoals,
)
from esker.wire.errors import RequestFailed, UserError
from esker.wire.messages import ClusterStatus, ClusterStatusReply, Method
from esker.wire.status import Status
from esker.wire.types import ChainGoal, Leaving

T = TypeVar("T")

ATTEMPTS = 8
ATTEMPT_PAUSE_S = 0.5
EXPAND_TIMEOUT_S = 60.0
"""The slot table of thousands of chains takes seconds."""


async def run_replace(
    cluster: str, old: str, new: str, *, force: bool, dry_run: bool, wait_s: float | None, as_json: bool
) -> ExitCode:
    """`new` takes the place of `old` in all chains. `wait_s` None: only begin it."""
    async with ClusterLink(cluster) as link:

        async def begin() -> tuple[Cluster, list[ChainGoal]]:
            found = await _look(link)
            if old not in found.drives:
                return found, []
            goals = plan_replacement(found, old, new, force=force)
            if not dry_run:
                begun = SetGoals(found.routing.version, tuple(goals), (Leaving(old, 0, new),))
                await link.meta(Method.SET_GOALS, begun, GrowthReply)
            return found, goals

        found, goals = await _attempts(begin)
        if old not in found.drives:
            await _check_replaced(link, old, new)
            return show_outcome(Outcome("done"), {"old": old, "new": new}, [f"drive {new} has replaced {old}"], as_json)
        notes = notes_of(found, goals)
        if dry_run:
            return show_plan(found, goals, {"old": old, "new": new}, notes, as_json)
        outcome = await watch(link, [old], wait_s, forgotten=True)
        lines = [f"{moved(outcome)} from drive {old} to {new}"]
        if outcome.state == "done":
            lines.append(f"drive {old} is not in the cluster any more; what is on its disk stays there")
        return show_outcome(outcome, {"old": old, "new": new}, lines + notes, as_json)


async def run_drain(
    cluster: str, name: str, *, cancel: bool, dry_run: bool, wait_s: float | None, as_json: bool
) -> ExitCode:
    """Others take the places of a drive, or of all drives of a node."""
    async with ClusterLink(cluster) as link:

        async def begin() -> tuple[Cluster, list[str], list[ChainGoal]]:
            found = await _look(link)
            drives = _named(found, name)
            goals = plan_staying(found, drives) if cancel else plan_drain(found, drives)
            leaving = () if cancel else tuple(Leaving(drive_id, 0) for drive_id in drives)
            if not dry_run:
                staying = tuple(drives) if cancel else ()
                begun = SetGoals(found.routing.version, tuple(goals), leaving, staying)
                await link.meta(Method.SET_GOALS, begun, GrowthReply)
            return found, drives, goals

        found, drives, goals = await _attempts(begin)
        names = {"name": name, "drives": drives}
        notes = notes_of(found, goals)
        if dry_run:
            return show_plan(found, goals, names, notes, as_json)
        if cancel:
            return show_outcome(
                Outcome("done"), names, [f"{name} stays: {len(goals)} chains keep what they have"], as_json
            )
        outcome = await watch(link, drives, wait_s, forgotten=False)
        lines = [f"{moved(outcome)} from {name} to others"]
        if outcome.state == "done":
            lines.append(f"{name} is empty: esker admin remove-node {name} removes it from the cluster")
        return show_outcome(outcome, names, lines + notes, as_json)


async def run_expand(cluster: str, *, dry_run: bool, as_json: bool) -> ExitCode:
    """New chains for the drives that have none."""
    async with ClusterLink(cluster) as link:

        async def begin() -> tuple[Cluster, list[TableGrowth]]:
            found = await _look(link)
            growths = plan_expansion(found)
            if growths and not dry_run:
                # One table at a time: each makes a new version of the map, from which the rest is planned again.
                grown = Expand(found.routing.version, growths[0].table_id, growths[0].chains)
                await link.meta(Method.EXPAND, grown, ExpandReply, timeout_s=EXPAND_TIMEOUT_S)
            return found, growths

        found, growths = await _attempts(begin)
        left = growths
        while not dry_run and len(left) > 1:
            _, left = await _attempts(begin)
    shown = [await asyncio.to_thread(growth_figures, found, growth) for growth in growths]
    notes = leftovers(found, {drive_id for row in shown for drive_id in row["drives"]}) + passed_over(found)
    if as_json:
        print_json({"tables": shown, "dry_run": dry_run, "notes": notes, "exit_code": 0})
        return ExitCode.FINE
    if not shown:
        for line in (*notes, "every drive that is up and stays has its chains: there is nothing to expand"):
            print_line(line)
        return ExitCode.FINE
    print_table(
        ["#table", "#version", "#new chains", "#new drives", "new blocks there", "fullest drive", "takeover"],
        [
            (
                row["table_id"],
                row["version"],
                row["chains"],
                len(row["drives"]),
                f"{row['share']:.1%}",
                f"{row['fullest']:.2f} of the mean",
                f"{row['takeover']:.2f} of the mean",
            )
            for row in shown
        ],
    )
    for note in notes:
        print_line(note)
    print_line(
        "nothing moves: new blocks go to all drives, what is stored stays where it is and is found there"
        + ("; nothing was changed (--dry-run)" if dry_run else "")
    )
    return ExitCode.FINE


async def run_remove_node(cluster: str, name: str, *, as_json: bool) -> ExitCode:
    """Forget an empty drive, or a node with all its drives."""
    async with ClusterLink(cluster) as link:

        async def remove() -> list[str]:
            found = await _look(link)
            drives = _named(found, name)
            held = {drive_id: len(found.chains_with(drive_id)) for drive_id in drives}
            if any(held.values()):
                raise UserError(f"{name} still holds {sum(held.values())} replicas: run esker admin drain {name} first")
            forget = ForgetDrives(found.routing.version, tuple(drives))
            await link.meta(Method.FORGET_DRIVES, forget, GrowthReply)
            return drives

        drives = await _attempts(remove)
    return show_outcome(
        Outcome("done"), {"name": name, "drives": drives}, [f"{name} is not in the cluster any more"], as_json
    )


async def run_balance(cluster: str, *, as_json: bool) -> ExitCode:
    """How even the newest version of every chain table is."""
    async with ClusterLink(cluster) as link:
        found = await _look(link)
    rows = [
        {"table_id": table_id, "chains": len(chains), **balance_figures(imbalance(sites_of(found), chains, weights))}
        for table_id, (chains, weights) in tables_of(found).items()
    ]
    counts = Counter(each.drive_id for chain in found.routing.chains for each in chain.replicas)
    heads = Counter(chain.replicas[0].drive_id for chain in found.routing.chains)
    drives = [
        {
            "node_id": drive.worker.node_id,
            "drive_id": drive_id,
            "replicas": counts[drive_id],
            "heads": heads[drive_id],
            "used_bytes": drive.used_bytes,
            "capacity_bytes": drive.worker.capacity_bytes,
            "leaving": drive_id in found.leaving,
        }
        for drive_id, drive in sorted(found.drives.items(), key=lambda each: (each[1].worker.node_id, each[0]))
    ]
    if as_json:
        print_json({"tables": rows, "drives": drives, "goals": len(found.routing.goals), "exit_code": 0})
        return ExitCode.FINE
    print_table(
        ["node", "drive", "#replicas", "#heads", "#used", "#capacity", "state"],
        [
            (
                row["node_id"],
                row["drive_id"],
                row["replicas"],
                row["heads"],
                shown_size(int(str(row["used_bytes"]))),
                shown_size(int(str(row["capacity_bytes"]))),
                "leaves" if row["leaving"] else "",
            )
            for row in drives
        ],
    )
    print_table(
        ["#table", "#chains", "#fullest drive", "#busiest head", "#takeover", "worst loss", "#chains sharing a node"],
        [
            (
                row["table_id"],
                row["chains"],
                f"{row['fullest']:.2f}",
                f"{row['heads']:.2f}",
                f"{row['takeover']:.2f}",
                row["takeover_of"] or "-",
                row["chains_sharing"],
            )
            for row in rows
        ],
        title="by the mean, which is 1",
    )
    return ExitCode.FINE


async def _look(link: ClusterLink) -> Cluster:
    status = await link.meta(Method.CLUSTER_STATUS, ClusterStatus(), ClusterStatusReply)
    figures = ClusterFigures(status)
    return Cluster(
        status.routing, [KnownDrive(each.worker, figures.up(each), each.used_bytes) for each in status.workers]
    )


async def _attempts(function: Callable[[], Awaitable[T]]) -> T:
    """Again where the cluster changed meanwhile. What the metadata server refuses otherwise is the user's mistake."""
    attempt = 0
    while True:
        attempt += 1
        try:
            return await function()
        except RequestFailed as error:
            if error.status is Status.BAD_REQUEST:
                raise UserError(error.message) from error
            if error.status is not Status.CONFLICT or attempt == ATTEMPTS:
                raise
        await asyncio.sleep(ATTEMPT_PAUSE_S)


def _named(found: Cluster, name: str) -> list[str]:
    """The drive of that id, or all drives of the node."""
    if name in found.drives:
        return [name]
    drives = sorted(drive_id for drive_id, drive in found.drives.items() if drive.worker.node_id == name)
    if not drives:
        raise UserError(f"there is no drive and no node {name!r}; esker admin nodes lists them")
    return drives


async def _check_replaced(link: ClusterLink, old: str, new: str) -> None:
    """Raises `UserError` unless `old` was replaced by `new`."""
    key = keys.removed_drive(old)
    page = await link.meta(Method.META_PAGE, MetaPage(key, key + b"\x00", 1), MetaPageReply)
    removed = unpack(RemovedDrive, key, page.rows[0][1]) if page.rows else None
    if removed is None:
        raise UserError(f"drive {old} is not in this cluster; esker admin nodes lists the drives")
    if removed.replaced_by != new:
        by = f"replaced by drive {removed.replaced_by}" if removed.replaced_by else "removed"
        raise UserError(f"drive {old} is not in this cluster any more: it was {by}")
