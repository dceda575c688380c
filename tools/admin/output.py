"""How `esker admin` prints: a table for people, JSON for machines, never both. Sizes and times for people."""

import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from esker.runtime.sizes import format_size

PIPED_WIDTH = 100_000


def print_json(value: Any) -> None:
    """One JSON object on one line of stdout."""
    sys.stdout.write(msgspec.json.encode(value, enc_hook=str).decode() + "\n")
    sys.stdout.flush()


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], title: str = "") -> None:
    """Columns whose names begin with `#` hold numbers and are aligned to the right.

    Lines are folded to the terminal's width; where there is no terminal each row is one line.
    """
    table = Table(title=title or None, title_justify="left", show_edge=False, pad_edge=False)
    for column in columns:
        table.add_column(column.lstrip("#"), justify="right" if column.startswith("#") else "left", overflow="fold")
    for row in rows:
        table.add_row(*(str(cell) for cell in row))
    width = None if sys.stdout.isatty() else PIPED_WIDTH
    Console(file=sys.stdout, highlight=False, markup=False, width=width).print(table)


def print_line(text: str) -> None:
    """A line of stdout, whatever it holds."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def shown_size(size_bytes: int) -> str:
    """For people."""
    return format_size(size_bytes)


def shown_time(time_ms: int) -> str:
    """Milliseconds since 1970 as UTC, to the second."""
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def shown_key(key: bytes) -> str:
    """A block's key: as text where it is printable ASCII, else in hexadecimal after 0x."""
    if key and all(33 <= byte < 127 for byte in key) and not key.startswith(b"0x"):
        return key.decode("ascii")
    return "0x" + key.hex()
