"""Opens the FoundationDB engine. The only module that imports the package `fdb`, and only when asked to open.

Owns every mistake of a user's set-up, each with an error that says what to check: package or library missing or of
other versions, cluster file missing or malformed, cluster that does not answer. Nothing waits longer than
`START_TIMEOUT_S`. The library's network thread starts with the first opening and lives as long as the process.
"""

import asyncio
import contextlib
import ctypes
import importlib
from pathlib import Path
from typing import Any

import msgspec

from esker.meta.store.base import KEY_END, RUN_TIMEOUT_S, TRANSACTION_BYTES_MAX, Retry
from esker.meta.store.cluster_file import coordinators
from esker.meta.store.errors import StoreError, StoreSilent
from esker.meta.store.foundationdb import FoundationStore
from esker.wire.errors import UserError

API_VERSION = 730
START_TIMEOUT_S = 5.0
TRANSACTION_TIMEOUT_S = 4.0
"""Of one attempt; shorter than an operation's, so that silence is told from contention."""
PREFIX_BYTES_MAX = 100
CLIENT_STATUS_TIMEOUT_S = 1.0

_PACKAGE_HINT = "pip install 'esker[fdb]'"
_LIBRARY_HINT = (
    "install the package foundationdb-clients of your cluster's version, from FoundationDB's releases "
    "(it holds libfdb_c.so)"
)


async def open_foundationdb(
    cluster_file: Path,
    *,
    prefix: bytes = b"",
    retry: Retry | None = None,
) -> FoundationStore:
    """Open the database of `cluster_file`; every key gets `prefix`.

    Raises `UserError`, naming what to check, also if the cluster does not answer within `START_TIMEOUT_S`.
    """
    if len(prefix) > PREFIX_BYTES_MAX or prefix >= KEY_END:
        raise UserError(f"the key prefix has {len(prefix)} bytes; allowed: up to {PREFIX_BYTES_MAX}, not from \\xff on")
    addresses = coordinators(cluster_file)
    fdb = _load()
    database = _open_database(fdb, cluster_file)
    store = FoundationStore(
        fdb,
        database,
        prefix,
        retry or Retry(),
        if_silent=f"check that FoundationDB runs and can be reached: fdbcli -C {cluster_file} --exec status",
        version=f"client {_client_version(fdb)}, API {API_VERSION}",
    )
    try:
        async with asyncio.timeout(START_TIMEOUT_S):
            await store.transaction().read_version()
    except (TimeoutError, StoreError) as error:
        reason = await _why_silent(store, database, cluster_file, addresses, error)
        await store.aclose()
        raise UserError(reason) from error
    return store


def _load() -> Any:
    """The package with its API version chosen, which loads the library."""
    try:
        fdb = importlib.import_module("fdb")
    except ImportError as error:
        raise UserError(f"metadata on FoundationDB needs the Python package foundationdb: {_PACKAGE_HINT}") from error
    if not hasattr(fdb, "api_version"):
        raise UserError(
            "the installed Python package fdb is not FoundationDB's (another package has that name): "
            f"pip uninstall fdb, then {_PACKAGE_HINT}"
        )
    latest = getattr(fdb, "LATEST_API_VERSION", API_VERSION)
    if latest < API_VERSION:
        raise UserError(
            f"the Python package foundationdb is too old: it knows API version {latest}, needed is {API_VERSION}: "
            "pip install --upgrade 'esker[fdb]'"
        )
    try:
        fdb.api_version(API_VERSION)
    except Exception as error:  # The package raises plain RuntimeError and Exception, told apart by their text.
        raise UserError(_load_failure(error)) from error
    return fdb


def _load_failure(error: Exception) -> str:
    text = " ".join(str(error).split())
    if "shared library" in text or isinstance(error, OSError):
        return f"FoundationDB's client library cannot be loaded ({text}): {_LIBRARY_HINT}"
    if "already loaded" in text:
        return f"{text}, but esker needs {API_VERSION}: choose that version in this process"
    return (
        f"FoundationDB's Python package and client library do not match ({text}): "
        f"{_LIBRARY_HINT}, and the Python package of the same version: pip install 'foundationdb==7.3.*'"
    )


def _open_database(fdb: Any, cluster_file: Path) -> Any:
    try:
        with contextlib.suppress(AttributeError, fdb.FDBError):
            # Else the library waits silently for a cluster whose version it cannot speak. Once the network thread
            # runs the option is refused, and was set before.
            fdb.options.set_fail_incompatible_client()
        database = fdb.open(str(cluster_file))
        database.options.set_transaction_timeout(round(TRANSACTION_TIMEOUT_S * 1000))
        database.options.set_transaction_size_limit(TRANSACTION_BYTES_MAX)
        database.options.set_transaction_report_conflicting_keys()
    except fdb.FDBError as error:
        raise UserError(f"cannot open the FoundationDB cluster of {cluster_file}: {error}; check that file") from error
    return database


def _client_version(fdb: Any) -> str:
    """Version of the library, else that of the package."""
    try:
        get_version = fdb.impl._capi.fdb_get_client_version
        get_version.restype = ctypes.c_char_p
        release: str = get_version().decode().split(",")[0]
    except (AttributeError, UnicodeDecodeError):
        return str(getattr(fdb, "__version__", "unknown"))
    return release


async def _why_silent(
    store: FoundationStore, database: Any, cluster_file: Path, addresses: list[str], error: Exception
) -> str:
    """What to tell of a cluster that gave no read version."""
    status = b""
    with contextlib.suppress(AttributeError, TimeoutError, StoreError):
        async with asyncio.timeout(CLIENT_STATUS_TIMEOUT_S):
            status = await store.library.result(database.get_client_status(), lambda future: future.value)
    if _incompatible(status) or "incompatible" in str(error).lower() or "no client matching" in str(error).lower():
        return (
            f"FoundationDB's client library ({await store.version()}) and the cluster of {cluster_file} have versions "
            f"that do not match: {_LIBRARY_HINT}"
        )
    told = f"no answer within {TRANSACTION_TIMEOUT_S:g} s" if isinstance(error, (StoreSilent, TimeoutError)) else error
    return (
        f"the FoundationDB cluster of {cluster_file} cannot be used (coordinators {', '.join(addresses)}; {told}); "
        f"check that it runs and can be reached: fdbcli -C {cluster_file} --exec status"
    )


def _incompatible(client_status: bytes) -> bool:
    """Whether the library's report on itself names a server of another version."""
    try:
        report = msgspec.json.decode(client_status or b"{}")
    except msgspec.DecodeError:
        return False
    if not isinstance(report, dict):
        return False
    inner = report.get("DatabaseStatus")
    connections = (inner if isinstance(inner, dict) else report).get("Connections", [])
    return "incompatible" in str(report.get("InitializationState", "")).lower() or any(
        isinstance(connection, dict) and connection.get("Compatible") is False for connection in connections
    )


assert min(START_TIMEOUT_S, RUN_TIMEOUT_S) > TRANSACTION_TIMEOUT_S
