"""The `esker` command's way in, also as `python -m esker`: quiet from the first moment.

Ctrl-C while modules load ends the process by the signal itself, so that nobody sees where the loading was.
"""

import signal
from typing import NoReturn


def main() -> NoReturn:
    """Runs the command line and exits with its code."""
    handled = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if handled:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from esker.tools import cli

    if handled:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    cli.main()


if __name__ == "__main__":
    main()
