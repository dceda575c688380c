"""`esker admin meta check`: the tables against each other, and the catalog's counters against its blocks.

The tables are looked at in one snapshot. Blocks are counted in pages of different versions, so a namespace's counters
are only judged where they stood still meanwhile, and only changed where two counts in a row agreed. Every repair says
what it expects to find: what has changed since it was looked at stays as it is.

Exit codes: `FINE`, `DIFFERENCES` (something is wrong still), `DEGRADED` (something changed too fast to be checked).
"""

from collections.abc import Callable, Set
from contextlib import aclosing
from dataclasses import dataclass, field

from esker.meta import keys
from esker.meta.admin_check import CounterSum, Finding, MetadataCheck, blocks_counted
from esker.meta.catalog_record import unpack_block
from esker.meta.store.errors import StoreError, printable
from esker.tools.admin.meta_source import Rows, all_rows, open_rows
from esker.tools.admin.output import print_json, print_line, print_table
from esker.tools.exit_codes import ExitCode
from esker.tools.progress import progress
from esker.wire.errors import RequestFailed
from esker.wire.status import Status

COUNT_ATTEMPTS = 4
CHANGE_ROWS = 1000
"""Rows of one repair: far below a transaction's limits."""
WHY = "esker admin meta check --repair"


@dataclass(slots=True)
class MetaCheckResult:
    """What came of a check."""

    rows: int = 0
    blocks: int = 0
    findings: list[Finding] = field(default_factory=list)
    repaired: list[Finding] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)

    def exit_code(self) -> ExitCode:
        """See the module."""
        if len(self.findings) > len(self.repaired):
            return ExitCode.DIFFERENCES
        return ExitCode.DEGRADED if self.unchecked else ExitCode.FINE


async def run_meta_check(
    cluster: str | None, store: str | None, fdb_prefix: str, *, repair: bool, as_json: bool
) -> ExitCode:
    """Checks, repairs if asked, prints. Raises `UserError`, `EskerError` (the metadata cannot be read)."""
    async with open_rows(cluster, store, fdb_prefix) as rows:
        result = await check_metadata(rows, repair=repair)
    if as_json:
        print_json(_as_dict(result))
    else:
        _explain(result, repair=repair)
    return result.exit_code()


async def check_metadata(rows: Rows, *, repair: bool) -> MetaCheckResult:
    """The whole check."""
    result = MetaCheckResult()
    _, found = await rows.snapshot()
    result.rows = len(found)
    check = MetadataCheck(found)
    result.findings = check.run()
    known = check.namespaces.keys() | check.removals.keys()
    with progress("counting blocks", max(1, blocks_counted(found))) as advance:
        for namespace_id in sorted(known):
            await _check_counters(rows, namespace_id, result, lambda: advance(result.blocks, ""))
    await _find_strays(rows, known, result)
    if repair:
        await _repair(rows, result)
    return result


async def _check_counters(rows: Rows, namespace_id: int, result: MetaCheckResult, moved: Callable[[], None]) -> None:
    earlier: list[Finding] | None = None
    for attempt in range(COUNT_ATTEMPTS):
        before = await _counters(rows, namespace_id)
        sums = CounterSum(namespace_id)
        async with aclosing(all_rows(rows, *keys.blocks(namespace_id))) as pages:
            async for page in pages:
                for key, value in page:
                    sums.add(keys.block_object(key), _size_bytes(key, value, result if attempt == 0 else None))
                result.blocks += len(page) if attempt == 0 else 0
                moved()
        if await _counters(rows, namespace_id) != before:
            earlier = None
            continue
        found = sums.findings(before)
        if not found or found == earlier:
            result.findings += found
            return
        earlier = found
    result.unchecked.append(f"counters of namespace {namespace_id}: its blocks keep changing")


def _size_bytes(key: bytes, value: bytes, result: MetaCheckResult | None) -> int:
    """Of a block; 0 where it is damaged, which `result` is told."""
    try:
        return unpack_block(key, value).block_bytes
    except StoreError as error:
        if result is not None:
            result.findings.append(Finding("block", printable(key), str(error)))
        return 0


async def _counters(rows: Rows, namespace_id: int) -> dict[bytes, bytes]:
    begin, end = keys.counters_of(namespace_id)
    return dict((await rows.page(begin, end, 2 * keys.COUNTER_SHARDS)).rows)


async def _find_strays(rows: Rows, known: Set[int], result: MetaCheckResult) -> None:
    """Blocks of namespaces that do not exist, by leaps from one namespace to the next."""
    begin, end = keys.all_blocks()
    while True:
        page = await rows.page(begin, end, 1)
        if not page.rows:
            return
        namespace_id = keys.namespace_id(page.rows[0][0])
        following = keys.blocks(namespace_id)[1]
        if namespace_id not in known and not await _exists(rows, namespace_id):
            async with aclosing(all_rows(rows, begin, following)) as pages:
                async for stray in pages:
                    for at in range(0, len(stray), CHANGE_ROWS):
                        part = stray[at : at + CHANGE_ROWS]
                        problem = f"{len(part)} blocks of namespace {namespace_id}, which does not exist"
                        changes = tuple((key, value, None) for key, value in part)
                        result.findings.append(Finding("block", printable(part[0][0]), problem, changes))
        begin = following


async def _exists(rows: Rows, namespace_id: int) -> bool:
    """Whether the namespace was made since the snapshot."""
    for key in (keys.namespace(namespace_id), keys.removal(namespace_id)):
        if (await rows.page(key, key + b"\x00", 1)).rows:
            return True
    return False


async def _repair(rows: Rows, result: MetaCheckResult) -> None:
    for finding in result.findings:
        if finding.repair:
            try:
                await rows.change(finding.repair, WHY)
            except RequestFailed as error:
                if error.status is not Status.CONFLICT:
                    raise
                continue  # it has changed meanwhile: the next check tells
            result.repaired.append(finding)


def _explain(result: MetaCheckResult, *, repair: bool) -> None:
    if result.findings:
        repaired = [id(finding) for finding in result.repaired]
        rows = [
            (each.table, each.key, each.problem, "repaired" if id(each) in repaired else _way_out(each))
            for each in result.findings
        ]
        print_table(["table", "key", "problem", "repair"], rows)
    for reason in result.unchecked:
        print_line(f"not checked: {reason}")
    print_line(f"{result.rows} rows and {result.blocks} blocks: {len(result.findings)} problems")
    if not repair and any(finding.repair for finding in result.findings):
        print_line("--repair mends what the rest of the metadata tells")


def _way_out(finding: Finding) -> str:
    if finding.repair:
        return "possible"
    return "catalog check --repair" if finding.table == "block" else "restore a backup"


def _as_dict(result: MetaCheckResult) -> dict[str, object]:
    repaired = [id(finding) for finding in result.repaired]
    return {
        "rows": result.rows,
        "blocks": result.blocks,
        "findings": [
            {
                "table": each.table,
                "key": each.key,
                "problem": each.problem,
                "repairable": bool(each.repair),
                "repaired": id(each) in repaired,
            }
            for each in result.findings
        ],
        "unchecked": result.unchecked,
        "exit_code": int(result.exit_code()),
    }
