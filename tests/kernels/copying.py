"""A kernel that copies, for tests of launches."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def copy_kernel(source_ptr, target_ptr, count, SIZE: tl.constexpr):
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    tl.store(target_ptr + at, tl.load(source_ptr + at, mask=at < count), mask=at < count)
