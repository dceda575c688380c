"""The shape of the code: who may import whom, no cycles, no heavy packages in worker processes, files of one purpose.

The imports are read from the source, so that those inside functions and under `TYPE_CHECKING` count too.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

FOLDERS = {
    "runtime": set(),
    "wire": {"runtime"},
    "craq": {"wire"},
    "chunkserver": {"wire", "craq", "runtime"},
    "meta": {"wire", "craq", "runtime"},
    "client": {"wire", "runtime"},
    "kvclient": {"client", "wire", "runtime"},
    "fuse": {"client", "wire", "runtime"},
    "tools": {"runtime", "wire", "craq", "chunkserver", "meta", "client", "kvclient", "fuse"},
}
"""Each folder and the folders that it may import."""

PURE_WIRE_MODULES = {"esker.wire.limits", "esker.wire.ids", "esker.wire.status", "esker.wire.types"}
"""All that the replication protocol may know of the wire."""
PURE_STANDARD_MODULES_BARRED = {"asyncio", "logging", "os", "random", "secrets", "socket", "threading", "time"}
"""Time, randomness, network and disk reach the replication protocol only as arguments."""

WORKER_FOLDERS = ("runtime", "wire", "craq", "chunkserver")
CLIENT_SIDE_WIRE_MODULES = {"esker.wire.placement"}
HEAVY_PACKAGES = {"numpy", "torch", "pandas", "pydantic"}
LINES_MAX = 400


@dataclass(frozen=True)
class Module:
    name: str
    folder: str
    path: Path
    text: str
    imports: frozenset[str]
    """Full names of what it imports: of ours the module itself, of others the name as written."""


def _sources(folder: str) -> list[Path]:
    return sorted(path for path in (ROOT / folder).rglob("*.py") if "__pycache__" not in path.parts)


def _name(path: Path) -> str:
    parts = ("esker", *path.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imported(text: str, ours: set[str]) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                yield "." * node.level + (node.module or "")
                continue
            assert node.module is not None
            for alias in node.names:
                submodule = f"{node.module}.{alias.name}"
                yield submodule if submodule in ours else node.module


def _modules() -> dict[str, Module]:
    paths = {_name(path): path for folder in FOLDERS for path in _sources(folder)}
    modules = {}
    for name, path in paths.items():
        text = path.read_text(encoding="utf-8")
        folder = path.relative_to(ROOT).parts[0]
        modules[name] = Module(name, folder, path, text, frozenset(_imported(text, set(paths))))
    return modules


MODULES = _modules()
EVERY_SOURCE = [path for folder in (*FOLDERS, "tests") for path in _sources(folder)]


def _ours(module: Module) -> Iterator[str]:
    return (name for name in module.imports if name.split(".")[0] == "esker")


def test_every_folder_is_part_of_the_package() -> None:
    links = {path.name: path.resolve() for path in (ROOT / "src" / "esker").iterdir() if path.is_symlink()}
    assert links == {folder: ROOT / folder for folder in FOLDERS}


def test_the_imports_of_a_source_are_found() -> None:
    text = """
import os.path
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    from esker.wire import ids
def late():
    from esker.wire.types import Chain
    from . import near
"""
    found = set(_imported(text, {"esker.wire", "esker.wire.ids", "esker.wire.types"}))
    assert found == {"os.path", "typing", "esker.wire.ids", "esker.wire.types", "."}


def test_the_documented_arrows_are_these() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    documented = {}
    for folder, allowed in re.findall(r"^\| `(\w+)/` \|.*\|(.*)\|$", text, re.MULTILINE):
        documented[folder] = (
            set(FOLDERS) - {folder} if "everything" in allowed else set(re.findall(r"`(\w+)`", allowed))
        )
    assert documented == FOLDERS


@pytest.mark.parametrize("name", MODULES)
def test_imports_follow_the_arrows(name: str) -> None:
    module = MODULES[name]
    for imported in module.imports:
        top, *rest = imported.split(".")
        assert top, f"{name} imports relatively: write from esker.… import"
        assert top not in FOLDERS, f"{name} imports {imported} as a top-level module: write esker.{imported}"
        if top == "esker" and rest:
            allowed = FOLDERS[module.folder] | {module.folder}
            assert rest[0] in allowed, f"{name} imports {imported}; {module.folder} may import {sorted(allowed)}"


def test_no_module_imports_itself_through_others() -> None:
    graph = {name: set(_ours(module)) & set(MODULES) for name, module in MODULES.items()}
    try:
        tuple(TopologicalSorter(graph).static_order())
    except CycleError as error:
        pytest.fail("import cycle: " + " -> ".join(error.args[1]))


def test_the_replication_protocol_is_pure() -> None:
    for module in MODULES.values():
        if module.folder != "craq":
            continue
        for imported in module.imports:
            top = imported.split(".")[0]
            assert top not in PURE_STANDARD_MODULES_BARRED, f"{module.name} imports {imported}"
            if imported.startswith("esker.wire"):
                assert imported in PURE_WIRE_MODULES, f"{module.name} imports {imported}"


def test_worker_processes_stay_light() -> None:
    for module in MODULES.values():
        if module.folder not in WORKER_FOLDERS or module.name in CLIENT_SIDE_WIRE_MODULES:
            continue
        for imported in module.imports:
            assert imported.split(".")[0] not in HEAVY_PACKAGES, f"{module.name} imports {imported}"
            assert imported not in CLIENT_SIDE_WIRE_MODULES, f"{module.name} imports {imported}"


@pytest.mark.parametrize("path", EVERY_SOURCE, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_have_one_purpose_and_say_it(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    lines = text.count("\n")
    assert lines <= LINES_MAX, f"{lines} lines"
    assert ast.get_docstring(ast.parse(text)), "the file does not open with what it owns"
