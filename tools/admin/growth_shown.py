"""What the commands that move drives show: plans, outcomes, how even chains are; as text or JSON."""

from collections.abc import Sequence
from typing import Any

from esker.meta.imbalance import Imbalance, imbalance
from esker.meta.layout import DriveSite
from esker.meta.replanning import Cluster, TableGrowth, sharing_chains
from esker.tools.admin.growth_watch import Outcome
from esker.tools.admin.output import print_json, print_line, print_table, shown_size
from esker.tools.exit_codes import ExitCode
from esker.wire.placement import build_slot_table
from esker.wire.types import ChainGoal


def notes_of(found: Cluster, goals: Sequence[ChainGoal]) -> list[str]:
    """What an operator should know of a plan."""
    shared = sharing_chains(found, goals)
    if not shared:
        return []
    return [f"note: {len(shared)} chains have replicas that share a node, as there is no other choice"]


def leftovers(found: Cluster, drives: set[str]) -> list[str]:
    """Of drives that get chains and are not empty: what is there is of chains that they were in before."""
    return [
        f"note: drive {drive_id} holds {shown_size(found.drives[drive_id].used_bytes)} of chains that it was taken out "
        "of; to have that room, remove it and start it anew with an empty directory"
        for drive_id in sorted(drives)
        if found.drives[drive_id].used_bytes and not found.chains_with(drive_id)
    ]


def passed_over(found: Cluster) -> list[str]:
    """Of drives that would get chains if they were up."""
    return [
        f"note: drive {drive_id} is silent and gets no chains; run this again when its worker is up"
        for drive_id, drive in sorted(found.drives.items())
        if not drive.alive and drive_id not in found.leaving and not found.chains_with(drive_id)
    ]


def moved(outcome: Outcome) -> str:
    """How far it has come, in words."""
    return f"{outcome.chains_done} of {outcome.chains} chains have moved ({shown_size(outcome.sent_bytes)} sent)"


def show_outcome(outcome: Outcome, names: dict[str, Any], lines: list[str], as_json: bool) -> ExitCode:
    """Prints how it ended, or how far it is; `names` say of what, in JSON. The command's exit code."""
    code = {"done": ExitCode.FINE, "begun": ExitCode.FINE}.get(outcome.state, ExitCode.AGAIN)
    if as_json:
        print_json({**names, **outcome.as_dict(), "exit_code": int(code)})
        return code
    for line in lines:
        print_line(line)
    if outcome.state != "done":
        waiting = f"; it waits for {outcome.waiting_for}" if outcome.waiting_for else ""
        print_line(f"it goes on in the background{waiting}; run the same command again to watch")
    return code


def show_plan(
    found: Cluster, goals: Sequence[ChainGoal], names: dict[str, Any], notes: list[str], as_json: bool
) -> ExitCode:
    """Prints what would become of chains."""
    chains = {chain.chain_id: chain for chain in found.routing.chains}
    rows = [
        {
            "chain_id": goal.chain_id,
            "now": [each.drive_id for each in chains[goal.chain_id].replicas],
            "then": list(goal.drives or (each.drive_id for each in chains[goal.chain_id].replicas)),
        }
        for goal in goals
    ]
    if as_json:
        print_json({**names, "state": "dry run", "plan": rows, "notes": notes, "exit_code": 0})
        return ExitCode.FINE
    print_table(
        ["#chain", "now", "then"], [(row["chain_id"], *map(_listed, (row["now"], row["then"]))) for row in rows]
    )
    for line in (*notes, f"{len(rows)} chains would change; nothing was changed (--dry-run)"):
        print_line(line)
    return ExitCode.FINE


def _listed(drives: object) -> str:
    return ", ".join(drives) if isinstance(drives, list) else str(drives)


def sites_of(found: Cluster) -> list[DriveSite]:
    """All drives."""
    return [drive.site for drive in found.drives.values()]


def tables_of(found: Cluster) -> dict[int, tuple[list[tuple[str, ...]], tuple[int, ...]]]:
    """Chains and weights of the newest version of every table."""
    members = {chain.chain_id: tuple(each.drive_id for each in chain.replicas) for chain in found.routing.chains}
    newest = {table.table_id: table for table in sorted(found.routing.tables, key=lambda table: table.version)}
    return {
        table_id: ([members.get(chain_id, ()) for chain_id in table.chain_ids], table.weights)
        for table_id, table in sorted(newest.items())
    }


def growth_figures(found: Cluster, growth: TableGrowth) -> dict[str, Any]:
    """What the growth of a table comes to."""
    table = max(
        (table for table in found.routing.tables if table.table_id == growth.table_id), key=lambda table: table.version
    )
    chains, weights = tables_of(found)[growth.table_id]
    first = max(chain.chain_id for chain in found.routing.chains) + 1
    ids = (*table.chain_ids, *range(first, first + len(growth.chains)))
    grown = (*weights, *(chain.weight for chain in growth.chains))
    slots = memoryview(build_slot_table(ids, grown)).cast("H")
    used = {drive_id for chain in chains for drive_id in chain}
    after = imbalance(sites_of(found), [*chains, *(chain.drives for chain in growth.chains)], grown)
    return {
        "table_id": growth.table_id,
        "version": table.version + 1,
        "chains": len(growth.chains),
        "drives": sorted({drive_id for chain in growth.chains for drive_id in chain.drives} - used),
        "share": sum(slot >= len(table.chain_ids) for slot in slots) / len(slots),
        **balance_figures(after),
    }


def balance_figures(found: Imbalance) -> dict[str, Any]:
    """For JSON."""
    return {
        "fullest": round(found.fullest, 3),
        "heads": round(found.heads, 3),
        "takeover": round(found.takeover, 3),
        "takeover_of": found.takeover_of,
        "chains_sharing": found.chains_sharing,
    }
