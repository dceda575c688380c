"""The choice of an engine, and the fallback with its reason."""

import asyncio

import liburing
import pytest

from esker.chunkserver.engine.io import open_engine
from esker.chunkserver.engine.vectors import UnknownLayout
from esker.wire.errors import UserError


def refuse(error: OSError, monkeypatch: pytest.MonkeyPatch) -> None:
    def queue_init(*_: object) -> None:
        raise error

    monkeypatch.setattr(liburing, "io_uring_queue_init", queue_init)


async def test_threads_by_name() -> None:
    engine = open_engine("threads")
    assert engine.name == "threads"
    engine.close()


async def test_io_uring_where_it_is_allowed() -> None:
    engine = open_engine()
    try:
        assert engine.name in ("io_uring", "threads")
        if engine.name == "threads":
            pytest.skip("this machine refuses io_uring")
    finally:
        engine.close()


@pytest.mark.parametrize(
    "error", [PermissionError(1, "not permitted"), OSError(38, "no such call"), OSError(12, "no memory")]
)
async def test_a_refused_ring_becomes_threads(
    error: OSError, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    refuse(error, monkeypatch)
    engine = open_engine("auto")
    engine.close()
    assert engine.name == "threads"
    assert len(caplog.records) == 1
    assert "io_uring refused, using threads" in caplog.text
    assert str(error.strerror) in caplog.text
    assert "fix=" in caplog.text


async def test_a_refused_ring_asked_for_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse(PermissionError(1, "not permitted"), monkeypatch)
    with pytest.raises(UserError, match=r"io_uring cannot be used: .*not permitted.*'threads'"):
        open_engine("io_uring")


async def test_a_package_of_another_layout_becomes_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object) -> None:
        raise UnknownLayout("laid out in an unknown way")

    monkeypatch.setattr("esker.chunkserver.engine.ring.VectorPool", unknown)
    engine = open_engine("auto")
    engine.close()
    assert engine.name == "threads"


async def test_an_unknown_engine() -> None:
    with pytest.raises(UserError, match=r"'aio' does not exist; choose one of: auto, io_uring, threads"):
        open_engine("aio")


def test_a_loop_is_needed() -> None:
    with pytest.raises(RuntimeError):
        open_engine("threads")
    loop = asyncio.new_event_loop()
    open_engine("threads", loop=loop).close()
    loop.close()
