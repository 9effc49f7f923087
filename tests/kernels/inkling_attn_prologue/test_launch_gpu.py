"""The compiled kernels on the card: against the reference on fresh inputs, and upstream's own bit for bit."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch

from kernels.inkling_attn_prologue.op import RUNNERS
from kernels.running import Tolerance
from tests.kernels.inkling_attn_prologue.drawn import Drawn, agree, called, referred
from tests.kernels.inkling_attn_prologue.problems import BF16, Arguments, held, moved

pytestmark = pytest.mark.gpu

STEP = Tolerance(rtol=2.0**-7)
CODES = Tolerance(share=0.001, step=1)
SILU_CODES = Tolerance(share=0.01, step=8)


@pytest.fixture(scope="module")
def launch(compiled: None) -> ModuleType:
    from kernels.inkling_attn_prologue import launch

    return launch


def fresh_seed() -> int:
    """Another input every run; a failing one is in the report, as a local of the test."""
    return secrets.randbelow(2**31)


LENGTHS = {
    "decode": [(1,) * tokens for tokens in (1, 3, 127, 600)],
    "verify": [(1,), (3,), (4,) * 16, (5,) * 33],
    "extend": [(1,), (3,), (127,), (0, 1, 2, 3, 4, 5, 130, 0, 1)],
}
CALLS = [
    Drawn(kind, lengths, q_heads, heads, **options)
    for kind, all_lengths in LENGTHS.items()
    for lengths in all_lengths
    for q_heads, heads, options in (
        (32, 8, {}),
        (16, 2, {"page": 128, "tau": True}),
        (5, 3, {"taps": 3, "residual": False, "weight_gap": 1, "track": False}),
        (3, 1, {"page": 96, "activation": "silu"}),
    )
]


def tolerances(drawn: Drawn) -> dict[str, Tolerance]:
    """Rows may be a step off, for sums have another order; state, windows and scale bytes are exact."""
    bf16 = ("k_out", "v_out") if drawn.page else ("q_out", "k_out", "v_out", "k_buf", "v_buf")
    codes = ("q_out", "k_buf", "v_buf") if drawn.page else ()
    found = dict.fromkeys(bf16, STEP) | dict.fromkeys(codes, SILU_CODES if drawn.activation else CODES)
    if drawn.activation and drawn.page:
        # The fast exponential may move an amax across a power of two.
        found |= dict.fromkeys(("sfk", "sfv"), Tolerance(share=0.005, step=2.0**31))
    return found


@pytest.mark.parametrize("drawn", CALLS, ids=str)
def test_writes_what_the_reference_writes(launch: ModuleType, drawn: Drawn) -> None:
    seed = fresh_seed()
    arguments = drawn.arguments(seed, "cuda")
    copies = moved(arguments, "cuda")
    written = called(drawn.kind, arguments)
    agree((arguments, written), (copies, referred(drawn.kind, copies)), tolerances(drawn))


@pytest.mark.parametrize("kind", LENGTHS)
@pytest.mark.parametrize("page", [None, 64])
def test_whole_numbers_are_exact_but_for_the_root(launch: ModuleType, kind: str, page: int | None) -> None:
    """Sums of whole numbers have no order: values, their pool and all bytes around them are equal."""
    drawn = Drawn(kind, (4,) * 40, 8, 4, page=page, whole=True)
    seed = fresh_seed()
    arguments = drawn.arguments(seed, "cuda")
    copies = moved(arguments, "cuda")
    written = called(kind, arguments)
    loose = {name: tolerance for name, tolerance in tolerances(drawn).items() if not name.startswith("v_")}
    agree((arguments, written), (copies, referred(kind, copies)), loose)


@pytest.mark.parametrize("kind", LENGTHS)
def test_captured_in_a_graph(launch: ModuleType, kind: str) -> None:
    drawn = Drawn(kind, (3,) * 20, 8, 2, page=128)
    first, second = (drawn.arguments(fresh_seed(), "cuda") for _ in range(2))
    called(kind, moved(first, "cuda"))  # compiles
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = called(kind, first)
    for name, tensor in second.items():
        if isinstance(tensor, torch.Tensor):
            held(first[name]).copy_(held(tensor))  # k's and v's columns lie behind qkvr's own
    graph.replay()
    expected = called(kind, second)
    for name, tensor in expected.items():
        assert torch.equal(outputs[name].view(torch.uint8), tensor.view(torch.uint8)), name


def test_rows_and_slots_beyond_32_bits(launch: ModuleType) -> None:
    """Rows, states and pool slots lie more than 2^31 elements apart."""
    if torch.cuda.mem_get_info()[0] < 60 << 30:
        pytest.skip("needs 60 GiB of device memory")
    drawn = Drawn("decode", (1, 1, 1), 2, 1, track=False)
    arguments = drawn.arguments(5, "cuda")
    arguments["cache_indices"] = torch.tensor([2, 0, 1], device="cuda")
    arguments["loc"] = torch.tensor([1, 2, 0], device="cuda")
    apart = (1 << 30) + 8
    copies = moved(arguments, "cuda")

    def spread(tensor: torch.Tensor) -> torch.Tensor:
        wide = torch.empty(2 * apart + tensor.stride(0), dtype=BF16, device="cuda")
        far = wide.as_strided((3, *tensor.shape[1:]), (apart, *tensor.stride()[1:]))
        return far.copy_(tensor[:3])

    for name in ("qkvr", "k_cache", "v_cache", "k_buf", "v_buf"):
        rows = arguments[name]
        if name == "qkvr":
            rows = rows.as_strided((3, rows.stride(0) - 8), rows.stride(), rows.storage_offset())
        arguments[name] = spread(rows)
    written, expected = called("decode", arguments), called("decode", copies)
    for name in ("q_out", "k_out", "v_out"):
        assert torch.equal(written[name], expected[name]), name
    for name in ("k_cache", "v_cache", "k_buf", "v_buf"):
        assert torch.equal(arguments[name][:3], copies[name][:3]), name


UPSTREAM = [
    Drawn(kind, lengths, 16, 2, page=page, tau=page is None)
    for kind, lengths in (("decode", (1,) * 333), ("verify", (4,) * 80), ("extend", (0, 1, 2, 3, 700, 5)))
    for page in (None, 64, 128)
]


@pytest.mark.parametrize("drawn", UPSTREAM, ids=str)
def test_equals_upstream_bit_for_bit(launch: ModuleType, drawn: Drawn) -> None:
    """Runs where upstream's functions are importable; they are compiled on first use."""
    module = pytest.importorskip("sglang.kernels.ops.attention.inkling_attn_prologue")
    name = f"inkling_attn_prologue_{drawn.kind}"
    prologue: Callable[..., Any] = getattr(module, name)
    arguments = drawn.arguments(fresh_seed(), "cuda")
    copies: Arguments = moved(arguments, "cuda")
    written = called(drawn.kind, arguments)
    expected = RUNNERS[name].outputs(copies, prologue(**copies))
    agree((arguments, written), (copies, expected))
