"""LMDB as an ordered map with keys above its limit: against a sorted dict."""

from pathlib import Path

import lmdb
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from esker.meta.store.ordered import DIRECT_BYTES_MAX, OrderedMap

STEM = b"k" * (DIRECT_BYTES_MAX - 1)
keys = st.builds(
    lambda stem, tail: (stem + tail) or b"\x00",
    st.sampled_from([b"", b"k", STEM, STEM + b"\x00", STEM + b"k", STEM + b"\xff"]),
    st.binary(max_size=3),
)
bounds = st.one_of(keys, st.just(b""), st.just(b"\xff" * 4))
steps = st.lists(
    st.one_of(
        st.tuples(st.just("put"), keys, st.binary(max_size=4)),
        st.tuples(st.just("delete"), keys),
        st.tuples(st.just("delete_range"), bounds, bounds),
        st.tuples(st.just("range"), bounds, bounds, st.integers(1, 6), st.booleans()),
    ),
    max_size=30,
)


@pytest.fixture
def environment(tmp_path: Path):
    with lmdb.open(str(tmp_path / "map.mdb"), subdir=False, map_size=1 << 26, max_dbs=2, sync=False) as opened:
        yield opened


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps)
def test_it_is_an_ordered_map(environment: lmdb.Environment, script: list[tuple]) -> None:
    ordered = OrderedMap(environment.open_db(b"data"))
    model: dict[bytes, bytes] = {}
    txn = environment.begin(write=True)
    for step in script:
        match step:
            case ("put", key, value):
                ordered.put(txn, key, value)
                model[key] = value
            case ("delete", key):
                ordered.delete(txn, key)
                model.pop(key, None)
            case ("delete_range", begin, end):
                begin, end = min(begin, end), max(begin, end)
                ordered.delete_range(txn, begin, end)
                model = {key: value for key, value in model.items() if not begin <= key < end}
            case ("range", begin, end, limit, reverse):
                begin, end = min(begin, end), max(begin, end)
                rows = sorted(((k, v) for k, v in model.items() if begin <= k < end), reverse=reverse)
                assert ordered.get_range(txn, begin, end, limit, reverse) == rows[:limit]
    assert ordered.get_range(txn, b"", b"\xff" * 600, 1000, False) == sorted(model.items())
    assert all(ordered.get(txn, key) == value for key, value in model.items())
    txn.abort()
