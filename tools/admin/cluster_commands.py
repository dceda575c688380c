"""`esker admin status`, `nodes`, `chains` and `targets`: the cluster as its manager sees it.

Each answers within a bounded time, also when half of the cluster is down, and ends as `DEGRADED` where something needs
attention.
"""

from collections import Counter
from typing import Any

from esker.tools.admin.cluster_figures import ChainState, ClusterFigures, admitted, chain_state, look
from esker.tools.admin.output import print_json, print_line, print_table, shown_size
from esker.tools.exit_codes import ExitCode
from esker.wire.errors import UserError
from esker.wire.messages import WorkerStatus
from esker.wire.types import Chain, TargetState


async def run_status(cluster: str, *, as_json: bool) -> ExitCode:
    """The cluster in a few lines."""
    figures = await look(cluster, counters=True)
    status, routing = figures.status, figures.status.routing
    states = Counter(str(chain_state(chain)) for chain in routing.chains)
    code = _code(figures)
    shown: dict[str, Any] = {
        "cluster_id": routing.cluster_id,
        "manager": status.manager,
        "term": status.term,
        "routing_version": routing.version,
        "nodes": len({worker.node_id for worker in routing.workers}),
        "drives": len(routing.workers),
        "drives_up": sum(figures.up(worker) for worker in status.workers),
        "chains": len(routing.chains),
        "chains_by_state": {str(state): states[state] for state in ChainState},
        "resyncs_under_way": figures.total("resyncs_under_way"),
        "resync_bytes": figures.total("resync_bytes"),
        "used_bytes": sum(worker.used_bytes for worker in status.workers),
        "capacity_bytes": sum(worker.capacity_bytes for worker in routing.workers),
        "blocks": status.blocks,
        "chunks_repaired": figures.total("repair_repaired"),
        "troubles": [{"drive_id": each.worker.drive_id, "trouble": why} for each, why in figures.troubles()],
        "note": status.note,
        "exit_code": int(code),
    }
    if as_json:
        print_json(shown)
        return code
    by_state = ", ".join(f"{states[state]} {state}" for state in ChainState if states[state]) or "none yet"
    print_table(
        ["cluster", "value"],
        [
            ("id", shown["cluster_id"]),
            ("manager", f"{status.manager} in term {status.term}" if status.manager else "none"),
            ("nodes", shown["nodes"]),
            ("drives", f"{shown['drives_up']} of {shown['drives']} up"),
            ("chains", by_state),
            ("resyncs", f"{shown['resyncs_under_way']} under way"),
            ("resynced", f"{shown_size(shown['resync_bytes'])} since the workers started"),
            ("used", f"{shown_size(shown['used_bytes'])} of {shown_size(shown['capacity_bytes'])}"),
            ("blocks", f"{shown['blocks']:,}"),
        ],
    )
    for worker, why in figures.troubles():
        print_line(f"drive {worker.worker.drive_id} of {worker.worker.node_id}: {why}")
    if status.note:
        print_line(f"note: {status.note}")
    return code


async def run_nodes(cluster: str, *, as_json: bool) -> ExitCode:
    """Every drive's worker, node by node."""
    figures = await look(cluster)
    rows = [_worker(figures, worker) for worker in sorted(figures.status.workers, key=_place)]
    code = _code(figures)
    if as_json:
        print_json({"workers": rows, "exit_code": int(code)})
        return code
    print_table(
        ["node", "drive", "address", "heard", "#serving", "#chains", "#used", "#capacity"],
        [
            (
                row["node_id"],
                row["drive_id"],
                row["address"],
                _heard(row["heard_s_ago"], up=row["up"]),
                row["serving"],
                row["chains"],
                shown_size(row["used_bytes"]),
                shown_size(row["capacity_bytes"]),
            )
            for row in rows
        ],
    )
    return code


async def run_chains(cluster: str, *, unsettled: bool, as_json: bool) -> ExitCode:
    """All chains, or those that are not whole."""
    figures = await look(cluster)
    chains = [chain for chain in figures.chains if not unsettled or chain_state(chain) is not ChainState.WHOLE]
    code = _code(figures)
    if as_json:
        print_json({"chains": [_chain(chain) for chain in chains], "exit_code": int(code)})
        return code
    print_table(
        ["#chain", "#version", "state", "replicas"],
        [
            (
                chain.chain_id,
                chain.version,
                chain_state(chain),
                ", ".join(f"{replica.drive_id} {replica.state}" for replica in chain.replicas),
            )
            for chain in chains
        ],
    )
    return code


async def run_targets(cluster: str, *, drive: str, as_json: bool) -> ExitCode:
    """Every replica's place on its drive; of one drive, if it is named. Raises `UserError` for a name of none."""
    figures = await look(cluster)
    workers = {status.worker.drive_id: status for status in figures.status.workers}
    rows = []
    for chain in figures.chains:
        for place, replica in enumerate(chain.replicas):
            if drive not in ("", replica.drive_id):
                continue
            status = workers.get(replica.drive_id)
            rows.append(
                {
                    "drive_id": replica.drive_id,
                    "node_id": "" if status is None else status.worker.node_id,
                    "chain_id": chain.chain_id,
                    "place": place,
                    "state": str(replica.state),
                    "up": status is not None and figures.up(status),
                    "admitted": status is not None and admitted(replica, status.worker.incarnation),
                }
            )
    if drive and drive not in workers and not rows:
        raise UserError(f"there is no drive called {drive!r}; esker admin nodes lists them")
    rows.sort(key=lambda row: (row["node_id"], row["drive_id"], row["chain_id"]))
    code = _code(figures)
    if as_json:
        print_json({"targets": rows, "exit_code": int(code)})
        return code
    print_table(
        ["node", "drive", "#chain", "#place", "state", "worker"],
        [
            (row["node_id"], row["drive_id"], row["chain_id"], row["place"], row["state"], _of_worker(row))
            for row in rows
        ],
    )
    return code


def _code(figures: ClusterFigures) -> ExitCode:
    return ExitCode.FINE if figures.healthy() else ExitCode.DEGRADED


def _place(status: WorkerStatus) -> tuple[str, str]:
    return status.worker.node_id, status.worker.drive_id


def _worker(figures: ClusterFigures, status: WorkerStatus) -> dict[str, Any]:
    worker = status.worker
    own = [
        replica
        for chain in figures.chains
        for replica in chain.replicas
        if replica.drive_id == worker.drive_id and replica.state is TargetState.SERVING
    ]
    return {
        "node_id": worker.node_id,
        "drive_id": worker.drive_id,
        "address": f"{worker.host}:{worker.port}",
        "up": figures.up(status),
        "heard_s_ago": round(status.seconds_since_heartbeat, 1),
        "serving": len(own),
        "chains": status.chains,
        "used_bytes": status.used_bytes,
        "capacity_bytes": worker.capacity_bytes,
    }


def _chain(chain: Chain) -> dict[str, Any]:
    return {
        "chain_id": chain.chain_id,
        "version": chain.version,
        "state": str(chain_state(chain)),
        "min_replicas": chain.min_replicas,
        "replicas": [{"drive_id": each.drive_id, "state": str(each.state)} for each in chain.replicas],
    }


def _heard(seconds: float, *, up: bool) -> str:
    if seconds < 0:
        return "never"
    return f"{seconds:.1f} s ago" + ("" if up else ", silent")


def _of_worker(row: dict[str, Any]) -> str:
    if not row["up"]:
        return "silent"
    return "takes part" if row["admitted"] else "up"
