"""The `esker` command: its subcommands, and how it ends.

Every command's work lives in a module of its own, imported only when the command runs, so that `esker --help` is
quick and the server processes load nothing they do not need. Exit codes: `tools/exit_codes.py`. Mistakes of the user
print one line; bugs print a traceback.
"""

import sys
from typing import NoReturn

import typer

from esker.runtime.errors import SettingError
from esker.tools.commands import cluster, processes
from esker.tools.commands.admin import admin_app
from esker.tools.commands.bench import bench
from esker.tools.commands.failover import failover
from esker.tools.commands.replay import replay
from esker.tools.commands.trace import trace_app
from esker.tools.exit_codes import ExitCode, epilog, exit_code_of
from esker.wire.errors import EskerError

app = typer.Typer(
    name="esker",
    help="SSD-backed KV-cache and storage layer for LLM inference.",
    epilog=epilog(),
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(processes.meta)
app.command()(processes.chunkserver)
app.command()(cluster.dev)
app.command()(cluster.demo)
app.command()(bench)
app.command()(failover)
app.command()(replay)
app.add_typer(trace_app, name="trace")
app.add_typer(admin_app, name="admin")


@app.command()
def version() -> None:
    """Print the version."""
    from esker import __version__

    typer.echo(__version__)


def main() -> NoReturn:
    """Runs the command line and exits with its code."""
    try:
        app(prog_name="esker")
    except (EskerError, SettingError) as error:
        # One line, whatever the message holds.
        print("error:", " ".join(str(error).split()), file=sys.stderr)
        sys.exit(exit_code_of(error))
    except UnicodeEncodeError as error:
        if error.reason != "surrogates not allowed":
            raise
        print(f"error: {error.object!r} is not UTF-8 text", file=sys.stderr)
        sys.exit(ExitCode.USAGE)
    except KeyboardInterrupt:
        sys.exit(ExitCode.INTERRUPTED)
    raise AssertionError("the command line returned without an exit code")
