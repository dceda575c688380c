"""Registration with CUDA, against a stand-in for torch: there is no GPU where tests run."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from esker.client.buffers import BufferPool


class Cudart:
    """Counts registrations; `code` is what the next calls return."""

    def __init__(self, code: int = 0) -> None:
        self.code = code
        self.registered: dict[int, int] = {}

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:
        if not self.code:
            self.registered[address] = size
        return self.code

    def cudaHostUnregister(self, address: int) -> int:
        del self.registered[address]
        return 0


def install(monkeypatch: pytest.MonkeyPatch, cudart: Any, *, available: bool = True) -> None:
    """Puts a torch that has this runtime in the place of the real one."""
    cuda = SimpleNamespace(is_available=lambda: available, cudart=lambda: cudart)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))


def test_the_whole_arena_is_registered_and_unregistered_at_close(monkeypatch: pytest.MonkeyPatch) -> None:
    cudart = Cudart()
    install(monkeypatch, cudart)
    pool = BufferPool(4096, 5)
    address = pool.acquire(1)[0].numpy().ctypes.data
    assert cudart.registered == {address: 5 * 4096}
    assert pool.statistics().registered_with_cuda
    pool.close()
    assert cudart.registered == {}


@pytest.mark.parametrize("broken", [Cudart(code=2), None])
def test_a_failure_is_only_slower(
    monkeypatch: pytest.MonkeyPatch, broken: Any, caplog: pytest.LogCaptureFixture
) -> None:
    install(monkeypatch, broken)
    pool = BufferPool(4096, 1)
    assert not pool.statistics().registered_with_cuda
    assert "copies to the GPU are slower" in caplog.text
    pool.acquire(1)[0].view[:4] = b"data"
    pool.close()


def test_nothing_is_tried_without_a_gpu_or_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    cudart = Cudart()
    install(monkeypatch, cudart, available=False)
    BufferPool(4096, 1).close()
    monkeypatch.delitem(sys.modules, "torch")
    BufferPool(4096, 1).close()
    assert cudart.registered == {}
