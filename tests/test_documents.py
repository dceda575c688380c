"""What the documents promise about the command line and the client is true of this code."""

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from esker.tools.dev_cluster import DevCluster
from esker.wire.limits import MIB

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
DEADLINE_S = 60
GROUPS = {("trace",), ("admin",), ("admin", "catalog"), ("admin", "meta"), ("admin", "namespaces")}
"""Commands that have commands of their own."""


def _command_lines() -> list[str]:
    """Every `esker …` line of the documents' indented blocks, each once."""
    pattern = re.compile(r"^    (esker [a-z].*)$", re.MULTILINE)
    found: dict[str, None] = {}
    for document in DOCUMENTS:
        joined = document.read_text(encoding="utf-8").replace("\\\n", " ")
        found.update(dict.fromkeys(pattern.findall(joined)))
    return list(found)


async def _run(*arguments: str, source: str = "") -> str:
    """Standard output of a Python process that must succeed."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *arguments,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "COLUMNS": "400", "NO_COLOR": "1"},
    )
    try:
        async with asyncio.timeout(DEADLINE_S):
            output, errors = await process.communicate(source.encode())
    except TimeoutError:
        process.kill()
        await process.wait()
        raise
    assert process.returncode == 0, errors.decode()
    return output.decode()


@pytest.mark.parametrize("line", _command_lines())
async def test_documented_commands_and_options_exist(line: str) -> None:
    words = line.split()[1:]
    command = words[:1]
    while tuple(command) in GROUPS:
        command = words[: len(command) + 1]
    text = await _run("-m", "esker", *command, "--help")
    options = set(re.findall(r"(?<!\S)--?[a-z][a-z-]*", text))
    used = {word.split("=")[0] for word in words if re.match(r"--?[a-z]", word)}
    assert used <= options


async def test_the_readmes_example_does_what_it_says() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (source,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert source.count('"127.0.0.1:9380"') == 1
    async with DevCluster(drives=4, replicas=2, capacity_bytes=64 * MIB) as cluster:
        output = await _run("-", source=source.replace("127.0.0.1:9380", cluster.address))
    lines = output.splitlines()
    assert lines == [f"OK 655360 b'{letter * 4}'" for letter in "ABCD"]
    assert f"`{lines[0]}`" in text


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_between_documents_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", document.read_text(encoding="utf-8")):
        assert (document.parent / target).exists(), target


def test_the_tests_that_documents_name_exist() -> None:
    named = [
        (document.name, file, test)
        for document in DOCUMENTS
        for file, test in re.findall(r"`([a-z_/]+\.py)::(test_[a-z0-9_]+)`", document.read_text(encoding="utf-8"))
    ]
    assert named
    for document, file, test in named:
        source = (ROOT / "tests" / file).read_text(encoding="utf-8")
        assert re.search(rf"^(async )?def {test}\(", source, re.MULTILINE), f"{document}: {file}::{test}"
