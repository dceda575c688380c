"""Exit codes of the `esker` command. Scripts rely on them: a code never changes its meaning."""

from enum import IntEnum

from esker.runtime.errors import SettingError
from esker.tools.child_errors import ChildEnded
from esker.wire.errors import ConnectionFailed, DeadlineExceeded, EskerError, UserError


class ExitCode(IntEnum):
    """How a command ended."""

    FINE = 0
    INTERNAL = 1
    USAGE = 2
    DEGRADED = 3
    WRONG_BYTES = 4
    UNREACHABLE = 5
    DIFFERENCES = 6
    AGAIN = 75
    INTERRUPTED = 130


MEANING = {
    ExitCode.FINE: "fine",
    ExitCode.INTERNAL: "a bug in esker; a traceback was printed",
    ExitCode.USAGE: "bad input or set-up; one line on stderr says what to do",
    ExitCode.DEGRADED: "finished, but some operations were unavailable, timed out or found no space",
    ExitCode.WRONG_BYTES: "wrong bytes were read",
    ExitCode.UNREACHABLE: "the cluster could not be reached in time",
    ExitCode.DIFFERENCES: "a check found what does not agree, and it was not (all) repaired",
    ExitCode.AGAIN: "not over yet: it goes on by itself; run the command again later",
    ExitCode.INTERRUPTED: "interrupted by Ctrl-C (dev, meta and chunkserver run until then: 0)",
}


def epilog() -> str:
    """The codes as one paragraph of `--help`."""
    return "Exit codes: " + "; ".join(f"{code.value} {MEANING[code]}" for code in ExitCode) + "."


def exit_code_of(error: EskerError | SettingError) -> ExitCode:
    """The code of a command that an error ended."""
    if isinstance(error, UserError | SettingError):
        return ExitCode.USAGE
    if isinstance(error, ChildEnded):
        return ExitCode.INTERNAL
    return ExitCode.UNREACHABLE if isinstance(error, ConnectionFailed | DeadlineExceeded) else ExitCode.DEGRADED
