"""FoundationDB's cluster file: checked before the library sees it, which would only wait if something is wrong.

Format: `description:id@host:port[:tls],...`, blank lines and lines that begin with # aside.
"""

import os
import re
from pathlib import Path

from esker.wire.errors import UserError

_CONTENT = re.compile(r"(?P<name>[A-Za-z0-9_]+):(?P<id>[A-Za-z0-9]+)@(?P<coordinators>[^\s,]+(?:,[^\s,]+)*)")
_COORDINATOR = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[^\s\[\]:]+):(?P<port>[0-9]{1,5})(?::tls)?(?:\(fromHostname\))?")
FILE_BYTES_MAX = 64 * 1024
_EXAMPLE = "description:id@host:port,..."


def coordinators(path: Path) -> list[str]:
    """The coordinators' addresses. Raises `UserError` if the file cannot be read or is not a cluster file."""
    try:
        with path.open("rb") as file:
            content = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        reason = os.strerror(error.errno).lower() if error.errno else str(error)
        raise UserError(
            f"cannot read the cluster file {path}: {reason}; "
            "give the path of your FoundationDB cluster's file, often /etc/foundationdb/fdb.cluster"
        ) from error
    lines = [line.strip() for line in content.decode("utf-8", "replace").splitlines()]
    lines = [line for line in lines if line and not line.startswith("#")]
    found = _CONTENT.fullmatch(lines[0]) if len(lines) == 1 else None
    if found is None:
        raise UserError(f"{path} is not a cluster file: it must hold one line {_EXAMPLE}; copy it from the cluster")
    addresses = found["coordinators"].split(",")
    for address in addresses:
        parsed = _COORDINATOR.fullmatch(address)
        if parsed is None or not 1 <= int(parsed["port"]) <= 65535:
            raise UserError(
                f"{path} is not a cluster file: {address!r} is no coordinator's address; it must hold one line "
                f"{_EXAMPLE}; copy it from the cluster"
            )
    return addresses
