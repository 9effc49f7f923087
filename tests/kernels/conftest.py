"""Triton has one mode a process: compiled with a GPU, else interpreted; TRITON_INTERPRET=1 chooses too."""

from __future__ import annotations

import os

import pytest

from kernels import interpreter


@pytest.fixture(scope="session")
def interpreted() -> None:
    """Kernels of this process run in the corrected interpreter; import kernel modules after it."""
    import torch

    if torch.cuda.is_available() and os.environ.get(interpreter.VARIABLE) != "1":
        pytest.skip("this process compiles kernels for its GPU")
    interpreter.prepare()
