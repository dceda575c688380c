"""Pins host memory for the GPU, where torch is loaded and sees one. Failure is slower, never wrong.

torch is never imported from here: a process that moves blocks to a GPU has it already, and others should not pay
for it.
"""

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from esker.runtime.logging import get_logger

log = get_logger("client.cuda")

Unregister = Callable[[], None]


def register_host_memory(view: memoryview) -> Unregister | None:
    """Registers `view` with CUDA (cudaHostRegister). Returns how to undo it, or None where it is not registered."""
    torch: Any = sys.modules.get("torch")
    try:
        if torch is None or not torch.cuda.is_available():
            return None
        cudart = torch.cuda.cudart()
        address = np.frombuffer(view, dtype=np.uint8).ctypes.data
        code = int(cudart.cudaHostRegister(address, len(view), 0))
    except (RuntimeError, AttributeError, TypeError, AssertionError) as error:
        log.warning("the pool is not registered with CUDA: copies to the GPU are slower", reason=str(error))
        return None
    if code:
        log.warning("the pool is not registered with CUDA: copies to the GPU are slower", cuda_error=code)
        return None

    def unregister() -> None:
        result = int(cudart.cudaHostUnregister(address))
        if result:
            log.warning("the pool could not be unregistered from CUDA", cuda_error=result)

    return unregister
