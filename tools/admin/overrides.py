"""`esker admin force-chain` and `set-min-replicas`: an operator against the manager's own decisions."""

import sys
import time
from typing import Any

import msgspec

from esker.tools.admin.link import ClusterLink
from esker.tools.admin.output import print_json, print_line, print_table
from esker.tools.exit_codes import ExitCode
from esker.wire.messages import Method
from esker.wire.override_messages import (
    ForceChain,
    ForceChainReply,
    ReplicaReport,
    SetMinReplicas,
    SetMinReplicasReply,
)
from esker.wire.types import TargetState

SHORT_SHOWN = 20


async def run_force_chain(
    cluster: str, chain_id: int, drive_id: str, *, lose_data: bool, timeout_s: float, as_json: bool
) -> ExitCode:
    """Shows what is known; with `lose_data` also does it, if nothing has changed in between. Within `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    async with ClusterLink(cluster) as link:
        ask = ForceChain(chain_id, drive_id)
        reply = await link.order(Method.FORCE_CHAIN, ask, ForceChainReply, timeout_s=timeout_s)
        shown = reply.replicas
        if lose_data:
            ask = msgspec.structs.replace(ask, chain_version=reply.chain.version, lose_data=True)
            left_s = max(0.001, deadline - time.monotonic())
            reply = await link.order(Method.FORCE_CHAIN, ask, ForceChainReply, timeout_s=left_s)
    code = ExitCode.FINE if reply.done else ExitCode.USAGE
    lost = [each.drive_id for each in shown if each.state is TargetState.LASTSRV and each.drive_id != drive_id]
    if as_json:
        print_json(
            {
                "chain_id": chain_id,
                "version": reply.chain.version,
                "done": reply.done,
                "serves": drive_id if reply.done else "",
                "candidates": lost,
                "replicas": [_replica(each) for each in shown],
                "exit_code": int(code),
            }
        )
    else:
        print_table(
            ["drive", "node", "state", "worker", "has"],
            [(each.drive_id, each.node_id or "?", each.state, _heard(each), _has(each)) for each in shown],
            title=f"chain {chain_id}",
        )
    if reply.done:
        if not as_json:
            print_line(
                f"chain {chain_id} is served by {drive_id} in version {reply.chain.version}; "
                "its other replicas are brought up to date from there as they come back"
            )
        return code
    sys.stderr.write(
        f"nothing was changed: what only {', '.join(lost) or 'others'} may have of chain {chain_id} would be lost for "
        f"good; bring one of them back, or say --yes-lose-data to have {drive_id} serve what it has\n"
    )
    return code


async def run_set_min_replicas(
    cluster: str, minimum: int, table_id: int, chain_id: int, *, timeout_s: float, as_json: bool
) -> ExitCode:
    """Sets it, and tells of chains that take no writes now."""
    async with ClusterLink(cluster) as link:
        ask = SetMinReplicas(minimum, chain_id, table_id)
        reply = await link.order(Method.SET_MIN_REPLICAS, ask, SetMinReplicasReply, timeout_s=timeout_s)
    code = ExitCode.DEGRADED if reply.short else ExitCode.FINE
    if as_json:
        print_json(
            {
                "min_replicas": minimum,
                "chains": reply.chains,
                "changed": reply.changed,
                "smaller": reply.smaller,
                "short": list(reply.short),
                "exit_code": int(code),
            }
        )
        return code
    print_line(f"min_replicas is {minimum} for {reply.chains} chains; {reply.changed} of them had another")
    if reply.smaller:
        print_line(f"{reply.smaller} chains have fewer replicas and were passed over")
    if reply.short:
        named = ", ".join(map(str, reply.short[:SHORT_SHOWN])) + (", …" if len(reply.short) > SHORT_SHOWN else "")
        print_line(f"fewer serve of {len(reply.short)} chains at the moment, which take no writes until then: {named}")
    return code


def _replica(report: ReplicaReport) -> dict[str, Any]:
    return {
        "drive_id": report.drive_id,
        "node_id": report.node_id,
        "state": str(report.state),
        "up": report.up,
        "heard_s_ago": round(report.heard_s_ago, 1),
    }


def _heard(report: ReplicaReport) -> str:
    if report.heard_s_ago < 0:
        return "never heard"
    return f"heard {report.heard_s_ago:.1f} s ago" + ("" if report.up else ", down")


def _has(report: ReplicaReport) -> str:
    if report.state is TargetState.LASTSRV:
        return "everything"
    return "perhaps not what was written since it was taken out"
