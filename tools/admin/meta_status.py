"""`esker admin meta status`: the metadata servers, their store, who is the manager, how far the catalog is behind."""

from typing import Any

from esker.tools.admin.link import QUESTION_TIMEOUT_S, ClusterLink
from esker.tools.admin.output import print_json, print_line, print_table, shown_size
from esker.tools.exit_codes import ExitCode
from esker.tools.running import all_or_none
from esker.wire.errors import EskerError
from esker.wire.messages import ClusterStatus, ClusterStatusReply, Empty, Method, StatsReply, WorkerStatus
from esker.wire.meta_client import parse_addresses
from esker.wire.rpc_client import Connection

SILENT_S = 5.0
"""A worker whose last heartbeat is older is shown as silent."""


async def run_meta_status(cluster: str, *, as_json: bool) -> ExitCode:
    """`DEGRADED` where a metadata server that is known does not answer, or no manager is there.

    Raises `UserError`, and `ConnectionFailed` where no metadata server answers.
    """
    async with ClusterLink(cluster) as link:
        status = await link.meta(Method.CLUSTER_STATUS, ClusterStatus(), ClusterStatusReply)
        namespaces = await link.namespaces()
    addresses = status.routing.meta_servers or tuple(part.strip() for part in cluster.split(","))
    answers = await all_or_none(_server_counters(address) for address in addresses)
    servers = dict(zip(addresses, answers, strict=True))
    silent = [address for address, counters in servers.items() if counters is None]
    lags = [worker.catalog for worker in status.workers]
    shown: dict[str, Any] = {
        "cluster_id": status.routing.cluster_id,
        "engine": status.engine,
        "manager": status.manager,
        "term": status.term,
        "routing_version": status.routing.version,
        "servers": servers,
        "namespaces": sum(each.removal is None for each in namespaces),
        "removals": sum(each.removal is not None for each in namespaces),
        "blocks": sum(each.blocks for each in namespaces),
        "block_bytes": sum(each.block_bytes for each in namespaces),
        "catalog_lag_ms": max((lag.lag_ms for lag in lags), default=0),
        "catalog_waiting": sum(lag.waiting for lag in lags),
        "catalog_dropped": sum(lag.dropped for lag in lags),
        "catalog_check_due": sorted(each.worker.drive_id for each in status.workers if each.catalog.check_due),
        "drives": [_drive(each) for each in status.workers],
        "note": status.note,
    }
    code = ExitCode.DEGRADED if silent or not status.manager else ExitCode.FINE
    if as_json:
        print_json({**shown, "exit_code": int(code)})
    else:
        _explain(shown)
    return code


async def _server_counters(address: str) -> dict[str, int] | None:
    """What one metadata server counts; None where it does not answer."""
    (place,) = parse_addresses(address)
    try:
        connection = await Connection.connect(place, role="tool")
    except EskerError:
        return None
    try:
        return (await connection.call(Method.STATS, Empty(), StatsReply, timeout_s=QUESTION_TIMEOUT_S)).counters
    except EskerError:
        return None
    finally:
        await connection.aclose()


def _drive(status: WorkerStatus) -> dict[str, Any]:
    return {
        "drive_id": status.worker.drive_id,
        "heard_s_ago": round(status.seconds_since_heartbeat, 1),
        "catalog_waiting": status.catalog.waiting,
        "catalog_lag_ms": status.catalog.lag_ms,
        "catalog_dropped": status.catalog.dropped,
        "catalog_check_due": status.catalog.check_due,
    }


def _explain(shown: dict[str, Any]) -> None:
    manager = f"{shown['manager']} in term {shown['term']}" if shown["manager"] else "none"
    print_table(
        ["metadata", "value"],
        [
            ("cluster", shown["cluster_id"]),
            ("engine", shown["engine"]),
            ("manager", manager),
            ("version of the cluster map", shown["routing_version"]),
            ("namespaces", f"{shown['namespaces']}, and {shown['removals']} being removed"),
            ("blocks", f"{shown['blocks']} of {shown_size(shown['block_bytes'])}, without replicas"),
            ("catalog", f"{shown['catalog_lag_ms']} ms behind, {shown['catalog_waiting']} entries waiting"),
        ],
    )
    rows = [(address, *_server(counters)) for address, counters in shown["servers"].items()]
    print_table(["metadata server", "answers", "#store file", "#commits"], rows)
    columns = ["drive", "heard", "#lag ms", "#waiting", "#dropped", "catalog check"]
    print_table(columns, [_drive_row(drive) for drive in shown["drives"]])
    if shown["note"]:
        print_line(f"note: {shown['note']}")


def _server(counters: dict[str, int] | None) -> tuple[str, str, str]:
    if counters is None:
        return "no", "", ""
    file_bytes = counters.get("store_file_bytes")
    return (
        "yes",
        "" if file_bytes is None else shown_size(file_bytes),
        str(counters.get("store_commits", "")),
    )


def _drive_row(drive: dict[str, Any]) -> tuple[object, ...]:
    heard_s = drive["heard_s_ago"]
    heard = "never" if heard_s < 0 else f"{heard_s:.1f} s ago" + (", silent" if heard_s > SILENT_S else "")
    due = "due" if drive["catalog_check_due"] else "not due"
    return (
        drive["drive_id"],
        heard,
        drive["catalog_lag_ms"],
        drive["catalog_waiting"],
        drive["catalog_dropped"],
        due,
    )
