"""`esker admin` as a user meets it: what it prints, its exit codes, its one-line errors."""

import asyncio
import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from esker.kvclient import Geometry, KVCacheClient, Status
from esker.tools.dev_cluster import DevCluster
from esker.tools.exit_codes import ExitCode
from esker.wire.limits import MIB

from ...waiting import until

TIMEOUT_S = 60
GEOMETRY = Geometry(block_bytes_max=4096)


async def esker(*arguments: object, code: ExitCode = ExitCode.FINE) -> str:
    """Standard output of `esker admin …`, which must end with `code`; or its one line of complaint."""
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "esker", "admin", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        env={**os.environ, "COLUMNS": "200", "NO_COLOR": "1"},
        check=False,
    )
    assert done.returncode == code, done.stderr + done.stdout
    if code not in (ExitCode.USAGE, ExitCode.UNREACHABLE):
        return done.stdout
    lines = [line for line in done.stderr.splitlines() if not re.match(r"\d{4}-\d\d-\d\dT", line)]
    assert len(lines) == 1, done.stderr
    return lines[0]


def unused_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"127.0.0.1:{listener.getsockname()[1]}"


async def test_a_cluster_is_looked_after(tmp_path: Path) -> None:
    async with DevCluster(drives=2, replicas=2, capacity_bytes=64 * MIB, port=0) as cluster:
        here = ("--cluster", cluster.address)

        async def admin(*arguments: object, code: ExitCode = ExitCode.FINE) -> str:
            return await esker(*arguments, *here, code=code)

        async def as_json(*arguments: object, code: ExitCode = ExitCode.FINE) -> dict[str, Any]:
            return json.loads(await admin(*arguments, "--json", code=code))

        for name in ("t/a", "keep"):
            async with await KVCacheClient.connect(cluster.address, name, GEOMETRY, pool_bytes=MIB) as client:
                results = await client.put([b"key-%d" % n for n in range(30)], [b"x" * 4096] * 30)
                assert {result.status for result in results} == {Status.OK}

        async def all_listed() -> bool:
            return [each["blocks"] for each in (await as_json("namespaces", "list"))["namespaces"]] == [30, 30]

        await until(all_listed, "the catalog has all blocks")
        assert re.search(r"1 │ t/a +│ +replicated +│ +30 │ +120 KiB │ live", await admin("namespaces", "list"))
        shown = await as_json("namespaces", "show", "t/a")
        assert shown["namespaces"][0]["geometry"]["block_bytes_max"] == 4096
        assert "salt" not in json.dumps(shown)
        assert "block_bytes_max" in await admin("namespaces", "show", "t/a")

        page = await as_json("blocks", "keep", "--limit", 20)
        rest = await as_json("blocks", "keep", "--limit", 20, "--after", page["next_after"])
        found = {block["key"] for block in page["blocks"] + rest["blocks"]}
        assert found == {f"key-{n}" for n in range(30)}
        assert rest["next_after"] is None
        assert f"more: --after {page['next_after']}" in await admin("blocks", "keep", "--limit", 20)

        assert "the catalog agrees with the drives" in await admin("catalog", "check")
        checked = await as_json("catalog", "check", "--namespace", "keep", "--repair")
        assert [each["blocks"] for each in checked["namespaces"]] == [30]

        status = await as_json("meta", "status")
        assert status["manager"] == cluster.address
        assert status["engine"].startswith("embedded")
        assert (status["blocks"], status["catalog_check_due"]) == (60, [])
        assert "embedded" in await admin("meta", "status")
        assert (await as_json("meta", "check"))["findings"] == []
        assert "0 problems" in await admin("meta", "check")
        assert (await as_json("meta", "get", "namespace-name", "keep"))["value"] == 2
        assert "chain_id 1" in await admin("meta", "get", "chain", 1)
        dumped = (await admin("meta", "dump", "namespace", "--json")).splitlines()
        assert [json.loads(line)["value"]["name"] for line in dumped] == ["t/a", "keep"]
        part = (await admin("meta", "dump", "--limit", 2)).splitlines()
        assert len(part) == 3
        more = re.fullmatch(r"more: --after '(.*)'", part[2])
        assert more is not None
        assert json.loads(await admin("meta", "dump", "--limit", 1, "--after", more[1], "--json"))["table"] == "drive"

        assert await admin("meta", "dump", "chain", "--after", r"\x20") == ""

        backup = await as_json("meta", "backup", tmp_path / "backup")
        assert backup["rows"] > 60
        assert "is there already" in await admin("meta", "backup", tmp_path / "backup", code=ExitCode.USAGE)
        assert "in use" in await esker(
            "meta", "check", "--store", f"embedded:{cluster.directory.meta}", code=ExitCode.USAGE
        )

        purged = await as_json("purge", "--tenant", "t", "--wait", "30s")
        assert [each["name"] for each in purged["removed"]] == ["t/a"]
        assert purged["under_way"] == []
        assert "namespace name 'no name'; allowed" in await admin(
            "namespaces", "remove", "no name", code=ExitCode.USAGE
        )
        assert "is not UTF-8 text" in await admin("namespaces", "show", "caf\udce9", code=ExitCode.USAGE)
        assert "there is nothing to remove" in await admin("purge", "--tenant", "t")
        assert "keep (id 2): " in await admin("namespaces", "remove", "keep")
        assert "no namespace 'keep'" in await admin("blocks", "keep", code=ExitCode.USAGE)
    restored = ("--store", f"embedded:{tmp_path / 'restored'}")
    assert (
        json.loads(await esker("meta", "restore", tmp_path / "backup", *restored, "--json"))["rows"] == backup["rows"]
    )
    assert "0 problems" in await esker("meta", "check", *restored)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["catalog", "check", "--cluster", "nowhere"], "host:port"),
        (["meta", "check"], "say whose metadata"),
        (["meta", "get", "chain"], "is written: chain CHAIN_ID"),
        (["meta", "get", "key", ""], "keys have 1 to 10000 bytes"),
        (["meta", "get", "key", r"\xffx"], "the first one below"),
        (["meta", "dump", "chains"], "there is no table"),
        (["meta", "check", "--store", "nowhere"], "write embedded:DIRECTORY"),
        (["meta", "restore", "{tmp}/absent", "--store", "embedded:{tmp}/s"], "cannot read"),
        (["blocks", "a", "--after", "xyz", "--cluster", "h:1"], "write the object id"),
        (["meta", "dump", "--store", "embedded:{tmp}/absent"], "there is no metadata store in"),
        (["purge", "--cluster", "h:1", "--id", "0"], "--id 0; give a namespace id"),
        (["purge", "--cluster", "h:1"], "one of --tenant, --namespace and --id"),
        (["purge", "--cluster", "h:1", "--tenant", "/"], "name the namespace, or the tenant"),
    ],
)
async def test_mistakes_end_with_one_line(tmp_path: Path, arguments: list[str], complaint: str) -> None:
    line = await esker(*(each.replace("{tmp}", str(tmp_path)) for each in arguments), code=ExitCode.USAGE)
    assert complaint in line


async def test_a_cluster_that_is_not_there() -> None:
    nowhere = unused_address()
    commands = ["catalog check", "namespaces list", "meta status", "meta dump"]
    asked = [esker(*each.split(), "--cluster", nowhere, code=ExitCode.UNREACHABLE) for each in commands]
    for line in await asyncio.gather(*asked):
        assert f"looked at {nowhere}" in line
