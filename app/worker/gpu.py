"""One GPU as a worker uses it: only while that harms nobody, behind everybody else, within what is left."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import Any

from app.worker import safety
from app.worker.nvml import Gpu, NvmlError


class WorkerGpu:
    """The GPU of this process. Until `turn` or `warm` nothing here creates a CUDA context where NVML is.

    reserve  bytes that stay free for others
    """

    def __init__(self, reserve: int) -> None:
        self._reserve = reserve
        self._nvml = safety.nvml_card()
        self._card: safety.Card = self._nvml or safety.ByDriver(0, _memory)

    def there(self) -> bool:
        """Whether torch can use a GPU, or could if its present use by others allowed it."""
        import torch

        if torch.version.cuda is None and torch.version.hip is None:
            return False
        if self._nvml is not None and self.refusal():
            return True  # asking CUDA itself would make this process a client of MPS
        return torch.cuda.is_available()

    def refusal(self) -> str:
        """Why nothing may be run just now; empty where it may."""
        return safety.refusal(self._card, self._reserve)

    def described(self) -> tuple[str, str]:
        """Its name and compute capability."""
        if isinstance(self._nvml, Gpu):
            with suppress(NvmlError):
                return self._nvml.name, self._nvml.capability
        import torch

        if torch.version.hip is not None:
            name = torch.cuda.get_device_properties().gcnArchName  # gfx942:sramecc+:xnack-
            return torch.cuda.get_device_name(), name.partition(":")[0]
        major, minor = torch.cuda.get_device_capability()
        return torch.cuda.get_device_name(), f"{major}.{minor}"

    def warm(self) -> None:
        """Create the context now, so that the first run does not wait for it."""
        import torch

        torch.zeros(1, device="cuda")

    @contextmanager
    def turn(self) -> Iterator[None]:
        """For one run: the lowest stream priority, and of the memory what others leave."""
        import torch

        free, total = self._card.memory()
        left = torch.cuda.memory_reserved() + free - self._reserve
        torch.cuda.set_per_process_memory_fraction(min(1.0, max(0.0, left / total)))
        with torch.cuda.stream(self._stream):
            yield

    def release(self) -> None:
        """Give back what torch keeps; RuntimeError where the context is lost."""
        import torch

        torch.cuda.synchronize()
        torch.cuda.empty_cache()

    @cached_property
    def _stream(self) -> Any:
        import torch

        # CUDA counts down: the lowest priority is the largest number.
        kind: Any = torch.cuda.Stream
        return kind(priority=max(kind.priority_range()))


def _memory() -> tuple[int, int]:
    """(free, total) in bytes, by torch."""
    import torch

    free, total = torch.cuda.mem_get_info()
    return free, total
