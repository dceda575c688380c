"""Reading and writing traces: what is accepted, and how a mistake is reported."""

from pathlib import Path

import pytest

from esker.tools.trace.format import TraceRequest, format_request, read_trace, write_trace
from esker.wire.errors import UserError

GOOD = b'{"timestamp": 5, "input_length": 700, "output_length": 3, "hash_ids": [0, 7]}\n'


def test_fields_are_read_and_unknown_ones_ignored(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_bytes(GOOD + b"\n" + b'{"timestamp": 6.5, "input_length": 1, "hash_ids": [3], "model": "x"}\n')
    assert list(read_trace(path)) == [
        TraceRequest(timestamp=5, input_length=700, output_length=3, hash_ids=(0, 7)),
        TraceRequest(timestamp=6.5, input_length=1, output_length=0, hash_ids=(3,)),
    ]


def test_limit_stops_before_what_follows(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_bytes(GOOD + GOOD + b"garbage\n")
    assert len(list(read_trace(path, limit=2))) == 2


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (b"{", "truncated"),
        (b"[1, 2]", "object"),
        (b'{"timestamp": 5, "input_length": 700}', "hash_ids"),
        (b'{"timestamp": "5", "input_length": 700, "hash_ids": [1]}', "timestamp"),
        (b'{"timestamp": -1, "input_length": 700, "hash_ids": [1]}', "timestamp"),
        (b'{"timestamp": 5, "input_length": -7, "hash_ids": [1]}', "input_length"),
        (b'{"timestamp": 5, "input_length": 700, "hash_ids": []}', "hash_ids"),
        (b'{"timestamp": 5, "input_length": 700, "hash_ids": [1, null]}', "hash_ids"),
        (b'{"timestamp": 5, "input_length": 700, "hash_ids": [18446744073709551616]}', "hash"),
        (b"\xff\xfe", "malformed"),
        (b"[" * 100_000, "object"),
    ],
)
def test_malformed_line_is_named_with_its_number(tmp_path: Path, line: bytes, complaint: str) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_bytes(GOOD + line + b"\n" + GOOD)
    with pytest.raises(UserError, match=complaint) as caught:
        list(read_trace(path))
    assert str(caught.value).startswith(f"{path}:2: ")
    assert "\n" not in str(caught.value)


def test_missing_file_directory_and_empty_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="No such file"):
        list(read_trace(tmp_path / "absent"))
    with pytest.raises(UserError, match="directory"):
        list(read_trace(tmp_path))
    empty = tmp_path / "empty"
    empty.write_bytes(b"\n")
    with pytest.raises(UserError, match="no request"):
        list(read_trace(empty))
    with pytest.raises(UserError, match="cannot write"):
        write_trace(tmp_path, [])


def test_written_traces_read_back_equal(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    requests = [TraceRequest(timestamp=n, input_length=n, output_length=1, hash_ids=(n, n + 1)) for n in range(5)]
    write_trace(path, requests)
    assert list(read_trace(path)) == requests
    assert format_request(requests[3]) == b'{"timestamp":3,"input_length":3,"output_length":1,"hash_ids":[3,4]}\n'
