"""Truncated LMDB files are found; healthy ones are not accused, also where they end before their last page."""

import os
from pathlib import Path
from random import Random

import lmdb
import pytest

from esker.runtime.lmdb_length import missing_bytes

PAGE_BYTES = 4096


def open_file(path: Path) -> lmdb.Environment:
    return lmdb.open(str(path), subdir=False, lock=False, sync=False, map_size=1 << 28, max_dbs=2, lib_version=0)


def stated_bytes(env: lmdb.Environment) -> int:
    return int((env.info()["last_pgno"] + 1) * env.stat()["psize"])


def test_healthy_files_of_every_length(tmp_path: Path) -> None:
    """Removals in bulk leave pages at the end that were never written."""
    path = tmp_path / "file"
    random = Random(3)
    short = 0
    keys: list[bytes] = []
    with open_file(path) as env:
        table = env.open_db(b"table")
        for step in range(60):
            removing = 0.3 if step % 20 < 10 else 0.95
            with env.begin(write=True, db=table) as txn:
                for _ in range(random.choice((1, 10, 300, 2000))):
                    if keys and random.random() < removing:
                        txn.delete(keys.pop(random.randrange(len(keys))))
                    else:
                        keys.append(random.randbytes(20))
                        txn.put(keys[-1], bytes(5000 if random.random() < 0.01 else 300))
            short += path.stat().st_size < stated_bytes(env)
            assert missing_bytes(path) == 0
    assert short, "no file ended before its last page: nothing was tested"


@pytest.mark.parametrize("value_bytes", [300, 100_000])
def test_every_cut_is_found(tmp_path: Path, value_bytes: int) -> None:
    path = tmp_path / "file"
    with open_file(path) as env, env.begin(write=True, db=env.open_db(b"table")) as txn:
        for number in range(600_000 // value_bytes):
            txn.put(number.to_bytes(8), bytes(value_bytes))
    assert missing_bytes(path) == 0
    whole_bytes = path.stat().st_size
    for size_bytes in range(whole_bytes - PAGE_BYTES // 2, 2 * PAGE_BYTES, -PAGE_BYTES // 2):
        os.truncate(path, size_bytes)
        assert 0 < missing_bytes(path) <= whole_bytes - size_bytes, size_bytes


def test_other_files_are_not_judged(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for content in (b"", b"short", bytes(3 * PAGE_BYTES)):
        path.write_bytes(content)
        assert missing_bytes(path) == 0


@pytest.mark.parametrize("seed", range(20))
def test_damaged_pages_end_the_search(tmp_path: Path, seed: int) -> None:
    """Whatever it finds in pages of garbage, it comes to an end without an error of its own."""
    path = tmp_path / "file"
    with open_file(path) as env, env.begin(write=True, db=env.open_db(b"table")) as txn:
        for number in range(500):
            txn.put(number.to_bytes(8), bytes(300))
    random = Random(seed)
    content = bytearray(path.read_bytes()[: -2 * PAGE_BYTES])
    for _ in range(2000):
        content[random.randrange(2 * PAGE_BYTES, len(content))] = random.choice((0, 1, 2, 255, random.randrange(256)))
    path.write_bytes(content)
    assert missing_bytes(path) >= 0
