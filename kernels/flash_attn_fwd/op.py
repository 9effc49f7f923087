"""flash_attn_fwd is checked and never run: `Operation.needs` says what a run would take."""

from __future__ import annotations

from kernels.running import Runner

RUNNERS: dict[str, Runner] = {}
