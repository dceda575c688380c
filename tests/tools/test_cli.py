"""The `esker` command as a user meets it: help, exit codes, one-line errors, Ctrl-C."""

import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from esker.runtime.errors import SettingError
from esker.tools.child_errors import ChildEnded
from esker.tools.commands.options import size
from esker.tools.exit_codes import MEANING, ExitCode, epilog, exit_code_of
from esker.wire.errors import ConnectionFailed, DeadlineExceeded, EskerError, UserError

TIMEOUT_S = 60
MALFORMED = b'{"timestamp": 0, "input_length": 1, "hash_ids": [1]}\n{"timestamp": 0}\n'


def esker(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "esker", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        env={**os.environ, "COLUMNS": "200", **environment},
        check=False,
    )


def error_line(done: subprocess.CompletedProcess[str], code: ExitCode) -> str:
    """The one line on stderr of a command that ended with `code`."""
    assert done.returncode == code, done.stderr
    lines = [line for line in done.stderr.splitlines() if not re.match(r"\d{4}-\d\d-\d\dT", line)]
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("error: ")
    return lines[0]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.jsonl"
    assert esker("trace", "generate", "-o", path, "--requests", "20").returncode == 0
    return path


def test_help_names_every_command_and_exit_code() -> None:
    done = esker("--help")
    assert done.returncode == 0
    for name in ("meta", "chunkserver", "dev", "demo", "bench", "failover", "replay", "trace", "admin", "version"):
        assert re.search(rf"\b{name}\b", done.stdout)
    text = " ".join(done.stdout.split())
    for code in ExitCode:
        assert f"{code.value} {MEANING[code]}" in text


@pytest.mark.parametrize("command", ["meta", "chunkserver", "dev", "demo", "bench", "failover", "replay", "admin"])
def test_each_command_explains_itself(command: str) -> None:
    done = esker(command, "--help")
    assert done.returncode == 0
    assert f"esker {command}" in done.stdout


def test_help_and_servers_load_no_numpy() -> None:
    script = """
import sys
import esker.tools.cli, esker.chunkserver.supervisor
assert not {"numpy", "torch"} & set(sys.modules), "heavy modules are loaded"
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=TIMEOUT_S)


def test_ctrl_c_while_modules_load_ends_it_quietly() -> None:
    script = """
import os, signal, sys

class Interrupted:
    def find_spec(self, name, path=None, target=None):
        if name == "typer":
            os.kill(os.getpid(), signal.SIGINT)
        return None

sys.meta_path.insert(0, Interrupted())
sys.argv = ["esker", "version"]
from esker.__main__ import main
main()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=TIMEOUT_S)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


def test_version_is_the_packages() -> None:
    from esker import __version__

    assert esker("version").stdout.strip() == __version__


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["trace", "stats", "{tmp}/absent"], "cannot read the trace"),
        (["trace", "stats", "{tmp}/bad"], "bad:2: not a trace request"),
        (["replay", "{tmp}/bad"], "bad:2: not a trace request"),
        (["trace", "generate", "-o", "{tmp}/x", "--preset", "no"], "there are: conversation"),
        (["trace", "generate", "-o", "{tmp}/x", "--lengths", "1:a"], "write points such as"),
        (["trace", "generate", "-o", "{tmp}/x", "--lengths", "0:1,100:1e12"], "allowed: up to 10000000"),
        (["trace", "generate", "-o", "{tmp}/x", "--lengths", "0:nan,100:5"], "nan is out of range"),
        (["trace", "generate", "-o", "{tmp}/x", "--system-prompt-blocks", "1000000"], "give fewer blocks"),
        (["trace", "generate", "-o", "{tmp}/x", "--turns", "0"], "turns out of range"),
        (["bench", "--rw", "trim"], "allowed: read"),
        (["bench", "--bs", "5k", "--iodepth", "0"], "multiples of 4096"),
        (["bench", "--size", "abc"], "not a size: 'abc'"),
        (["bench", "--runtime", "0"], "not a time: '0'"),
        (["bench", "--output-format", "xml"], "allowed: normal, json"),
        (["bench", "--cluster", "nowhere"], "host:port"),
        (["bench", "--mutable", "--bs", "12k"], "is no multiple of --bs"),
        (["failover", "--how", "hang"], "allowed: kill, stop, kill-both"),
        (["failover", "--replicas", "4"], "at least as many drives"),
        (["replay", "{tmp}/good", "--block-bytes", "7"], "multiples of 8"),
        (["meta", "--store", "embedded:{tmp}/m", "--drives", "2", "--host", "0.0.0.0", "--port", "0"], "--insecure"),
        (["meta", "--store", "embedded:{tmp}/m", "--drives", "0", "--port", "0"], "drives is 0"),
        (
            ["chunkserver", "--cluster", "h:1", "--drive", "{tmp}/d", "--capacity", "1g", "--host", "0.0.0.0"],
            "insecure",
        ),
        (
            ["chunkserver", "--cluster", "h:1", "--drive", "{tmp}/d", "--capacity", "1g", "--port", "1", "--port", "2"],
            "1 drives and 2 ports",
        ),
        (["dev", "{tmp}"], "neither empty nor"),
        (["admin", "meta", "get", "namespace-name", "caf\udce9"], "'caf\\udce9' is not text"),
        (["admin", "meta", "get", "key", "caf\udce9", "--store", "embedded:{tmp}/m"], "write ASCII as it is"),
        (["dev", "{tmp}/new", "--drives", "1", "--replicas", "2"], "at least as many drives"),
    ],
)
def test_mistakes_end_with_one_line(tmp_path: Path, arguments: list[str], complaint: str) -> None:
    (tmp_path / "bad").write_bytes(MALFORMED)
    (tmp_path / "good").write_bytes(MALFORMED.splitlines(keepends=True)[0])
    done = esker(*(argument.replace("{tmp}", str(tmp_path)) for argument in arguments))
    assert complaint in error_line(done, ExitCode.USAGE)


def test_names_of_files_are_shown_as_they_are(tmp_path: Path) -> None:
    place = tmp_path / "[red]" / "a[" / "b]"
    place.parent.mkdir(parents=True)
    place.write_bytes(MALFORMED.splitlines(keepends=True)[0])
    done = esker("trace", "stats", place)
    assert done.returncode == 0, done.stderr
    assert str(place) in "".join(line.strip() for line in done.stdout.splitlines())


@pytest.mark.parametrize("arguments", [["bogus"], ["bench", "--numjobs", "0"], ["replay"]])
def test_usage_errors_have_the_code_of_bad_input(arguments: list[str]) -> None:
    assert esker(*arguments).returncode == ExitCode.USAGE


def test_a_size_beyond_what_files_can_have_is_refused() -> None:
    assert size("8191P") == 8191 << 50
    with pytest.raises(SettingError, match="more than any drive"):
        size("8192P")


def test_a_cluster_that_is_not_there_is_named(trace: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    assert address in error_line(esker("replay", trace, ESKER_CLUSTER=address), ExitCode.UNREACHABLE)


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        done = esker("meta", "--store", f"embedded:{tmp_path}/meta", "--drives", "1", "--replicas", "1", "--port", port)
    assert port in error_line(done, ExitCode.USAGE)


def test_trace_figures_are_the_same_for_people_and_machines(trace: Path) -> None:
    machine = json.loads(esker("trace", "stats", trace, "--json").stdout)
    assert machine["requests"] == 20
    assert f"{machine['blocks']:,}" in esker("trace", "stats", trace).stdout


class Running:
    """A command that runs until it is told to stop."""

    def __init__(self, *arguments: str | Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "esker", *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def end(self, number: signal.Signals) -> tuple[int, str]:
        """Sends the signal; returns exit code and stderr."""
        self.process.send_signal(number)
        _, complaints = self.process.communicate(timeout=TIMEOUT_S)
        return self.process.returncode, complaints


@pytest.fixture
def running() -> Iterator[list[Running]]:
    started: list[Running] = []
    yield started
    for each in started:
        with each.process:  # Closes its pipes and waits for it.
            each.process.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_dev_says_where_everything_is_and_stops_cleanly(
    tmp_path: Path, running: list[Running], number: signal.Signals, trace: Path
) -> None:
    dev = Running("dev", tmp_path / "dev", "--drives", "2", "--capacity", "64m", "--port", "0", "--json")
    running.append(dev)
    info = json.loads(dev.line())
    assert [process["role"] for process in info["processes"]] == ["meta", "chunkserver", "worker", "worker"]
    assert all(Path(process["directory"]).is_dir() for process in info["processes"])
    done = esker("replay", trace, "--json", ESKER_CLUSTER=info["address"])
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["wrong_blocks"] == 0
    in_use = esker("dev", tmp_path / "dev")
    assert f"pid {info['pid']}" in error_line(in_use, ExitCode.USAGE)
    code, complaints = dev.end(number)
    assert (code, complaints) == (0, "")
    assert not any(Path("/proc", str(process["pid"])).exists() for process in info["processes"])


def test_no_process_outlives_a_killed_dev(tmp_path: Path, running: list[Running]) -> None:
    dev = Running("dev", tmp_path / "dev", "--drives", "2", "--capacity", "64m", "--port", "0", "--json")
    running.append(dev)
    pids = [process["pid"] for process in json.loads(dev.line())["processes"]]
    # A descriptor of a process becomes readable when it has ended.
    descriptors = [os.pidfd_open(pid) for pid in pids]
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    try:
        dev.end(signal.SIGKILL)
        while descriptors:
            ended = poll.poll(TIMEOUT_S * 1000)
            assert ended, f"{len(descriptors)} processes are still there"
            for descriptor, _ in ended:
                poll.unregister(descriptor)
                descriptors.remove(descriptor)
                os.close(descriptor)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def test_interrupted_commands_clean_up(tmp_path: Path, running: list[Running], trace: Path) -> None:
    replay = Running(
        "replay", trace, "--speed", "0.001", "--dir", tmp_path / "drives", "--drives", "1", "--replicas", "1"
    )
    running.append(replay)
    # Its cluster stands once the metadata server's directory does; wherever it is by then, it must clean up.
    while not list(tmp_path.glob("drives/*/meta/*")):
        assert replay.process.poll() is None
    code, complaints = replay.end(signal.SIGINT)
    assert code == ExitCode.INTERRUPTED
    assert "Traceback" not in complaints
    assert sorted(os.listdir(tmp_path)) == ["trace.jsonl"]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UserError("x"), ExitCode.USAGE),
        (ConnectionFailed("x"), ExitCode.UNREACHABLE),
        (DeadlineExceeded("x"), ExitCode.UNREACHABLE),
        (ChildEnded("x", 1), ExitCode.INTERNAL),
        (EskerError("x"), ExitCode.DEGRADED),
    ],
)
def test_every_kind_of_error_has_its_code(error: EskerError, code: ExitCode) -> None:
    assert exit_code_of(error) is code


def test_every_code_has_a_meaning() -> None:
    assert set(MEANING) == set(ExitCode)
    assert all(str(code.value) in epilog() for code in ExitCode)
