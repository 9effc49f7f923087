"""Calls of any size, their tensors drawn from a seed: strided rows, caches, windows, pools; some padding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from kernels.inkling_attn_prologue.op import RUNNERS
from kernels.running import Outputs, Tolerance, compare
from tests.kernels.inkling_attn_prologue.problems import BF16, FP8, U8, Arguments, emulated, moved, storage

PADDED = 0.2  # share of owners without a state slot, and of tokens without a pool slot
LARGEST = 3  # magnitude of whole numbers, whose sums float32 holds exactly


@dataclass(frozen=True)
class Drawn:
    """A call of `lengths`: sequences of extend, of verify its first's length each; of decode one token each.

    whole       small whole numbers instead of normal ones: results then depend on no order of additions
    page        slots of a page, with MXFP8; None without
    weight_gap  elements between one channel's weights and the next's
    """

    kind: str
    lengths: tuple[int, ...]
    q_heads: int = 4
    heads: int = 2
    taps: int = 4
    page: int | None = None
    activation: str | None = None
    residual: bool = True
    store: bool = True
    tau: bool = False
    track: bool = True
    weight_gap: int = 0
    whole: bool = False

    @property
    def tokens(self) -> int:
        """T."""
        by_kind = {"decode": len(self.lengths), "verify": self.lengths[0] * len(self.lengths)}
        return by_kind.get(self.kind, sum(self.lengths))

    def arguments(self, seed: int, device: str = "cpu") -> Arguments:
        """The call's arguments; no two owners or tokens share a slot, and no track slot is anyone's."""
        generator = torch.Generator().manual_seed(seed)
        dq, dkv, earlier = 128 * self.q_heads, 128 * self.heads, self.taps - 1
        owners, tokens = len(self.lengths), self.tokens

        def values(*shape: int) -> Tensor:
            if self.whole:
                return torch.randint(-LARGEST, LARGEST + 1, shape, generator=generator).to(BF16)
            return torch.randn(shape, generator=generator).to(BF16)

        def chance(count: int, share: float = 0.5) -> Tensor:
            return torch.rand(count, generator=generator) < share

        slots = torch.randperm(2 * owners + 1, generator=generator)
        indices = torch.where(chance(owners, PADDED), -1, slots[:owners])
        kept = chance(owners) & (indices >= 0)
        page = self.page or 16
        pages = -(-tokens // page) + 1
        loc = torch.randperm(pages * page, generator=generator)[:tokens]
        loc = torch.where(chance(tokens, PADDED), -3, loc)
        pool = values(pages * page, 2, self.heads, 128).to(BF16 if self.page is None else FP8)
        scales = None
        if self.page is not None:
            shape = (pages, self.heads, 32, self.page // 32, 4)
            scales = torch.randint(0, 255, shape, dtype=U8, generator=generator)
        cache = values(2, len(slots), self.taps, dkv + 8)
        weights = values(2, dkv, self.taps + self.weight_gap)[..., : self.taps]
        arguments: Arguments = {
            "qkvr": values(tokens, dq + 2 * dkv + 72)[:, 8 : dq + 8],
            "k_cache": cache[0, :, :earlier],
            "v_cache": cache[1, :, :earlier],
            "cache_indices": indices,
            "cache_mask": kept,
            "k_weight": weights[0],
            "v_weight": weights[1],
            "q_gamma": values(128),
            "k_gamma": values(128),
            "eps": 1e-6,
            "loc": loc,
            "k_buf": pool[:, 0],
            "v_buf": pool.clone()[:, 1],
            "q_off": 0,
            "k_off": dq + 16,
            "v_off": dq + dkv + 40,
            "dq": dq,
            "dkv": dkv,
            "activation": self.activation,
            "use_residual": self.residual,
            "do_store": self.store,
            "mxfp8_quant": self.page is not None,
            "sfk": scales,
            "sfv": None if scales is None else scales.clone(),
            "page_size": self.page or 128,
            "log_scaling_tau": torch.rand(tokens, generator=generator) + 0.5 if self.tau else None,
        }
        if self.kind == "decode":
            arguments["track_mask"] = chance(owners) if self.track else None
            arguments["track_indices"] = slots[owners : 2 * owners] if self.track else None
        elif self.kind == "verify":
            windows = values(2, owners + 1, self.lengths[0] + 1, self.taps, dkv + 8)[..., :earlier, :]
            arguments |= {"k_inter": windows[0], "v_inter": windows[1], "draft_token_num": self.lengths[0]}
        else:
            bounds = torch.tensor([0, *accumulate(self.lengths)])
            owner = torch.repeat_interleave(torch.arange(owners), torch.tensor(self.lengths))
            rows = torch.randint(0, max(tokens, 1), (owners, earlier), generator=generator)
            tracked, none = chance(owners), torch.empty(0, dtype=torch.int64)
            arguments |= {
                "has_initial_state": chance(owners),
                "cu": bounds,
                "si": owner.to(torch.int32),
                "track_rows": rows if self.track else none,
                "track_mask": tracked if self.track else none.bool(),
                "track_dst": slots[owners : 2 * owners] if self.track else none,
                "do_cache_update": True,
            }
        return moved(arguments, device)


def called(kind: str, arguments: Arguments) -> Outputs:
    """What the guarded function wrote."""
    runner = RUNNERS[f"inkling_attn_prologue_{kind}"]
    with emulated(arguments):
        return runner.outputs(arguments, runner.function(**arguments))


def referred(kind: str, arguments: Arguments) -> Outputs:
    """What the reference wrote."""
    return RUNNERS[f"inkling_attn_prologue_{kind}"].reference(arguments)


def agree(
    actual: tuple[Arguments, Outputs],
    expected: tuple[Arguments, Outputs],
    tolerances: Mapping[str, Tolerance] | None = None,
) -> None:
    """Outputs differ by no more than their tolerance, none by default; nor do any bytes around them."""
    tolerances = tolerances or {}
    assert actual[1].keys() == expected[1].keys()
    for name, output in expected[1].items():
        comparison = compare(name, actual[1][name], output, tolerances.get(name, Tolerance()))
        assert comparison.within, comparison
    for name, argument in expected[0].items():
        if isinstance(argument, Tensor) and name not in tolerances:
            assert torch.equal(storage(actual[0][name]), storage(argument)), name
