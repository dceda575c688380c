"""`esker admin meta dump` and `esker admin meta get`: rows of the metadata store, decoded, as JSON or for people."""

from contextlib import aclosing

import msgspec

from esker.meta.admin_decode import describe, make_key, parse_key, table_named
from esker.meta.admin_raw import FIRST_KEY
from esker.meta.store.base import KEY_END
from esker.tools.admin.meta_source import all_rows, open_rows
from esker.tools.admin.output import print_json, print_line
from esker.tools.exit_codes import ExitCode
from esker.wire.errors import UserError


async def run_dump(
    cluster: str | None, store: str | None, fdb_prefix: str, *, table: str | None, limit: int, after: str, as_json: bool
) -> ExitCode:
    """Up to `limit` rows (0: all) of a table, or of all, in key order. With `as_json` one object per line."""
    begin, end = (FIRST_KEY, KEY_END) if table is None else table_named(table).key_range
    if after:
        begin = min(max(begin, parse_key(after) + b"\x00"), end)
    shown = 0
    last = b""
    async with open_rows(cluster, store, fdb_prefix) as rows, aclosing(all_rows(rows, begin, end)) as pages:
        async for page in pages:
            for key, value in page:
                if limit and shown == limit:
                    if not as_json:
                        print_line(f"more: --after '{describe(last, b'')['key']}'")
                    return ExitCode.FINE
                _show(key, value, as_json=as_json)
                shown += 1
                last = key
    return ExitCode.FINE


async def run_get(
    cluster: str | None, store: str | None, fdb_prefix: str, *, words: list[str], as_json: bool
) -> ExitCode:
    """One row, by its table and the parts of its key, or by the key as error messages print it (after `key`)."""
    if words[0] == "key":
        if len(words) != 2:
            raise UserError("write: get key KEY, with bytes that are not ASCII as \\xNN")
        key = parse_key(words[1])
    else:
        key = make_key(words[0], words[1:])
    async with open_rows(cluster, store, fdb_prefix) as rows:
        page = await rows.page(key, key + b"\x00", 1)
    if not page.rows:
        raise UserError(f"there is no row {describe(key, b'')['key']}")
    _show(*page.rows[0], as_json=as_json)
    return ExitCode.FINE


def _show(key: bytes, value: bytes, *, as_json: bool) -> None:
    row = describe(key, value)
    if as_json:
        print_json(row)
        return
    fields = " ".join(f"{name}={part}" for name, part in row.get("fields", {}).items())
    said = f"DAMAGED: {row['damage']} ({row['raw']})" if "damage" in row else _compact(row["value"])
    print_line(f"{row['table']} {fields}: {said}" if fields else f"{row['table']}: {said}")


def _compact(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {part}" for name, part in value.items())
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
