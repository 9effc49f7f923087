"""The kernels in Triton's corrected interpreter against the reference: small calls of any kind."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernels.running import Tolerance
from tests.kernels.inkling_attn_prologue.drawn import Drawn, agree, called, referred
from tests.kernels.inkling_attn_prologue.problems import moved

# numpy's exp and torch's differ in the last bit, which moves a few roundings by a step.
ROUNDED = Tolerance(rtol=2.0**-7, share=0.01, step=8.0)

calls = st.builds(
    Drawn,
    kind=st.sampled_from(["decode", "verify", "extend"]),
    lengths=st.lists(st.integers(0, 6), min_size=1, max_size=4).map(tuple),
    q_heads=st.integers(1, 3),
    heads=st.integers(1, 3),
    taps=st.integers(2, 5),
    page=st.sampled_from([None, 32, 64, 96, 128]),
    residual=st.booleans(),
    tau=st.booleans(),
    track=st.booleans(),
    weight_gap=st.integers(0, 2),
    whole=st.just(True),
)


@pytest.fixture(scope="module")
def launch(interpreted: None) -> ModuleType:
    from kernels.inkling_attn_prologue import launch

    return launch


def check(drawn: Drawn, seed: int, tolerances: dict[str, Tolerance] | None = None) -> None:
    arguments = drawn.arguments(seed)
    copies = moved(arguments, "cpu")
    agree((arguments, called(drawn.kind, arguments)), (copies, referred(drawn.kind, copies)), tolerances)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(drawn=calls, store=st.booleans(), seed=st.integers(0, 2**31), tokens=st.sampled_from([1, 2, 4]))
def test_any_call(launch: ModuleType, drawn: Drawn, store: bool, seed: int, tokens: int) -> None:
    """Whatever a program covers; in decode and verify at least one token."""
    drawn = replace(drawn, store=store or drawn.page is not None)
    if drawn.kind == "verify":
        drawn = replace(drawn, lengths=(max(drawn.lengths[0], 1), *drawn.lengths[1:]))
    chosen = launch.Tile(1 if drawn.q_heads % 2 else 2, 5 - tokens, 1, tokens, 4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch, "choose_tile", lambda *_, **__: chosen)
        check(drawn, seed)


@pytest.mark.parametrize("kind", ["decode", "verify", "extend"])
@pytest.mark.parametrize("activation", ["silu", "swish"])
def test_silu(launch: ModuleType, kind: str, activation: str) -> None:
    drawn = Drawn(kind, (3, 3, 3), activation=activation, whole=True)
    check(drawn, 7, dict.fromkeys(("k_out", "v_out", "k_buf", "v_buf"), ROUNDED))


@pytest.mark.parametrize("kind", ["decode", "verify", "extend"])
def test_scales_that_no_word_fits(launch: ModuleType, kind: str) -> None:
    """Scale buffers may begin anywhere; heads' bytes are then stored one by one."""
    drawn = Drawn(kind, (4, 4), page=64, whole=True)
    arguments = drawn.arguments(3)
    for name in ("sfk", "sfv"):
        scales = arguments[name]
        shifted = scales.new_full((scales.numel() + 1,), 77)[1:].view(scales.shape)
        arguments[name] = shifted.copy_(scales)
    copies = moved(arguments, "cpu")
    agree((arguments, called(kind, arguments)), (copies, referred(kind, copies)))


def test_a_tile_divides_the_heads(launch: ModuleType) -> None:
    for kind in ("decode", "verify", "extend"):
        for tokens in (1, 64, 300, 5000, 100_000):
            for q_heads in range(1, 70):
                for heads in range(1, 12):
                    for interpreted in (False, True):
                        tile = launch.choose_tile(
                            kind, tokens, q_heads, heads, quantized=False, interpreted=interpreted
                        )
                        assert q_heads % tile.q_heads == heads % tile.heads == 0
                        for size in (tile.q_heads, tile.q_tokens, tile.heads, tile.tokens, tile.warps):
                            assert size >= 1
                            assert size & (size - 1) == 0
