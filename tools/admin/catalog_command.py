"""`esker admin catalog check`: every namespace, drives that hold what no namespace owns, and what the workers are told.

Exit codes: `FINE` where catalog and drives agree, also after a repair; `DIFFERENCES` where some differ still;
`DEGRADED` where something could not be compared, because a worker is down or the blocks kept changing.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

from esker.tools.admin.catalog_check import NamespaceCheck, NamespaceChecker
from esker.tools.admin.catalog_streams import blocks_in
from esker.tools.admin.link import ClusterLink, head_of
from esker.tools.admin.output import print_json, print_line, print_table
from esker.tools.exit_codes import ExitCode
from esker.tools.progress import progress
from esker.wire.admin_messages import CatalogChecked, Scan, ScanReply, space_before, split_record_key
from esker.wire.errors import EskerError, UserError
from esker.wire.messages import ClusterStatus, ClusterStatusReply, Empty, Method
from esker.wire.types import Chain, Namespace, Routing, Worker

SPACE_MAX = 2**32 - 1
NAMES_SHOWN = 3


@dataclass(slots=True)
class CatalogCheck:
    """What came of a check."""

    namespaces: list[NamespaceCheck] = field(default_factory=list)
    strange_spaces: list[int] = field(default_factory=list)
    """Ids of namespaces that chunks on the drives name and that the metadata does not know."""
    unchecked: list[str] = field(default_factory=list)
    """What else could not be looked at for unknown namespaces, and why."""
    drives_cleared: int = 0
    """Drives whose worker knew of entries that may have been lost, and that agree with the catalog now."""
    seconds: float = 0.0

    def exit_code(self) -> ExitCode:
        """See the module."""
        if any(each.wrong > each.repaired for each in self.namespaces):
            return ExitCode.DIFFERENCES
        incomplete = self.unchecked or any(each.unchecked or each.changing for each in self.namespaces)
        return ExitCode.DEGRADED if incomplete else ExitCode.FINE


async def run_catalog_check(cluster: str, namespace: str | None, *, repair: bool, as_json: bool) -> ExitCode:
    """Checks, prints, and tells how it ended. Raises `UserError`, `EskerError` (no metadata server answers)."""
    async with ClusterLink(cluster) as link:
        result = await check_catalog(link, namespace, repair=repair)
    if as_json:
        print_json({**asdict(result), "exit_code": int(result.exit_code())})
    else:
        explain(result, repair=repair)
    return result.exit_code()


async def check_catalog(link: ClusterLink, namespace: str | None, *, repair: bool) -> CatalogCheck:
    """The whole check. Raises like `run_catalog_check`."""
    started_s = time.monotonic()
    status = await link.meta(Method.CLUSTER_STATUS, ClusterStatus(), ClusterStatusReply)
    due = {worker.worker.drive_id: worker.catalog.check_due for worker in status.workers}
    routing = status.routing
    figures = await link.namespaces()
    live = [each.namespace for each in figures if each.removal is None]
    wanted = [each for each in live if namespace in (None, each.name)]
    if namespace is not None and not wanted:
        raise UserError(f"there is no namespace {namespace!r}; esker admin namespaces list shows them")
    result = CatalogCheck()
    failed: dict[int, str] = {}
    listed = {each.namespace.namespace_id: each.blocks for each in figures}
    for each in wanted:
        checker = await _check_namespace(link, routing, each, listed[each.namespace_id], repair=repair)
        result.namespaces.append(checker.result)
        failed.update(checker.failures)
    if namespace is None:
        known = {each.namespace.namespace_id for each in figures}
        result.strange_spaces, failures = await _strange_spaces(link, routing, known)
        # What kept a namespace from being checked was told with it.
        result.unchecked = [failures[chain_id] for chain_id in sorted(failures.keys() - failed.keys())]
        failed.update(failures)
        if all(each.wrong == each.repaired and not each.changing for each in result.namespaces):
            result.drives_cleared = await _clear(link, routing, due, failed)
    result.seconds = round(time.monotonic() - started_s, 3)
    return result


async def _check_namespace(
    link: ClusterLink, routing: Routing, namespace: Namespace, blocks: int, *, repair: bool
) -> NamespaceChecker:
    with progress(f"checking {namespace.name}", max(1, blocks)) as advance:

        def moved(compared: int, wrong: int) -> None:
            advance(compared, f"{wrong} differ" if wrong else "")

        checker = NamespaceChecker(link, routing, namespace, repair=repair, progress=moved)
        await checker.run()
    return checker


async def _strange_spaces(link: ClusterLink, routing: Routing, known: set[int]) -> tuple[list[int], dict[int, str]]:
    """Spaces of blocks on the heads' drives that are not `known`, and the chains that could not be looked at."""
    workers = {worker.drive_id: worker for worker in routing.workers}
    found: set[int] = set()
    failures: dict[int, str] = {}

    async def look(chain: Chain) -> None:
        head = head_of(chain, workers)
        if head is None:
            failures[chain.chain_id] = f"chain {chain.chain_id} has no worker at its head"
            return
        try:
            found.update(await _spaces(link, head, chain))
        except EskerError as error:
            failures[chain.chain_id] = f"chain {chain.chain_id}, drive {head.drive_id}: {error}"

    await asyncio.gather(*(look(chain) for chain in routing.chains))
    strange = found - known
    if strange:
        # Namespaces may have been made since the others were listed.
        strange -= {each.namespace.namespace_id for each in await link.namespaces()}
    return sorted(strange), failures


async def _spaces(link: ClusterLink, head: Worker, chain: Chain) -> set[int]:
    """Every space that the chain has chunks of, by leaps from one to the next."""
    found: set[int] = set()
    after = space_before(chain.chain_id, 1)
    while True:
        reply = await link.worker(head, Method.SCAN, Scan(chain.chain_id, after, 1), ScanReply)
        if blocks_in(reply.rows, reply.keys):
            _, space, _, _ = split_record_key(reply.rows[:28])
            found.add(space)
            if space == SPACE_MAX:
                return found
            after = space_before(chain.chain_id, space + 1)
        elif reply.next_after:
            after = reply.next_after
        else:
            return found


async def _clear(link: ClusterLink, routing: Routing, due: dict[str, int], failed: dict[int, str]) -> int:
    """Tells the workers whose drives agree with the catalog that what was lost is made up for; how many those are."""
    cleared = 0
    for worker in routing.workers:
        heads = [chain for chain in routing.chains if head_of(chain, {worker.drive_id: worker}) is worker]
        if due.get(worker.drive_id, 0) and not any(chain.chain_id in failed for chain in heads):
            try:
                body = CatalogChecked(due[worker.drive_id])
                await link.worker(worker, Method.CATALOG_CHECKED, body, Empty)
            except EskerError:
                continue  # its mark stays: at worst the catalog is checked once more
            cleared += 1
    return cleared


def explain(result: CatalogCheck, *, repair: bool) -> None:
    """Prints it for people: what kept several namespaces from being checked is one line."""
    columns = ["namespace", "#blocks", "#missing", "#extra", "#differing", "#repaired", "#changing"]
    rows = [
        (each.name, each.blocks, each.missing, each.extra, each.differing, each.repaired, each.changing)
        for each in result.namespaces
    ]
    print_table(columns, rows)
    unchecked: dict[str, list[str]] = {}
    for each in result.namespaces:
        _print_all(f"{each.name}: ", each.examples)
        for reason in each.unchecked:
            unchecked.setdefault(reason, []).append(each.name)
    for reason, names in unchecked.items():
        print_line(f"{_some(names)} not checked whole: {reason}")
    _print_all("not looked at: ", result.unchecked)
    for space in result.strange_spaces:
        print_line(
            f"drives hold chunks of namespace id {space}, which the metadata does not know; "
            f"esker admin purge --id {space} removes them"
        )
    left = sum(each.wrong - each.repaired for each in result.namespaces)
    if left and not repair:
        print_line(f"{left} blocks differ; --repair has the drives tell the catalog again")
    elif left:
        print_line(f"{left} blocks still differ; check again")
    elif result.exit_code() is ExitCode.FINE:
        print_line("the catalog agrees with the drives")


def _print_all(prefix: str, lines: Sequence[str]) -> None:
    for line in lines:
        print_line(prefix + line)


def _some(names: Sequence[str]) -> str:
    """The first few names of namespaces, as the begin of a sentence."""
    if len(names) == 1:
        return f"{names[0]} was"
    more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    return ", ".join(names[:NAMES_SHOWN]) + f"{more} were"
