"""What the subcommands' options share: parsing of sizes and times, common options, and how a command ends."""

from pathlib import Path
from typing import Annotated, NoReturn

import typer

from esker.runtime.errors import SettingError
from esker.runtime.sizes import parse_size
from esker.tools.exit_codes import ExitCode
from esker.wire.types import NamespaceMode

SIZE_BYTES_MAX = (1 << 63) - 1


def size(text: str) -> int:
    """A size option's bytes: `4k`, `1MiB`, `8g`. Raises `SettingError`."""
    size_bytes = parse_size(text)
    if size_bytes > SIZE_BYTES_MAX:
        raise SettingError(f"{text} is more than any drive or file can hold; write less than 8192P")
    return size_bytes


def seconds(text: str) -> float:
    """A time option's seconds: `5`, `2.5s`, `500ms`, `1m`, `2h`. Raises `SettingError`."""
    for suffix, factor in (("ms", 0.001), ("s", 1.0), ("m", 60.0), ("h", 3600.0), ("", 1.0)):
        if text.endswith(suffix):
            try:
                value = float(text.removesuffix(suffix)) * factor
            except ValueError:
                break
            if 0 < value < 1e9:
                return value
            break
    raise SettingError(f"not a time: {text!r}; write seconds, or a number with ms, s, m or h, such as 5s")


def finish(code: ExitCode) -> NoReturn:
    """Ends the command with this exit code."""
    raise typer.Exit(int(code))


Cluster = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        envvar="ESKER_CLUSTER",
        help="Metadata server(s), HOST:PORT[,HOST:PORT]. Without: a cluster of its own for this run.",
        metavar="ADDRESS",
        rich_help_panel="Cluster",
    ),
]
RunningCluster = Annotated[
    str,
    typer.Option(
        "--cluster",
        envvar="ESKER_CLUSTER",
        help="Metadata server(s), HOST:PORT[,HOST:PORT].",
        metavar="ADDRESS",
    ),
]
Directory = Annotated[
    Path | None,
    typer.Option("--dir", help="Where a cluster of its own keeps its drives. Default: a temporary directory."),
]
Drives = Annotated[int, typer.Option(min=1, max=64, help="Drives of a cluster of its own.")]
Replicas = Annotated[int, typer.Option(min=1, max=8, help="Copies of every block in a cluster of its own.")]
Mode = Annotated[
    NamespaceMode,
    typer.Option(
        "--mode", help="Of the namespace: replicated, or cache (one copy; other drives stand in for a dead one)."
    ),
]
