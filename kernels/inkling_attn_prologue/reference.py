"""The inkling attention prologues in plain torch: what the kernels must compute, write and leave alone.

T tokens, B sequences, N state slots, S pool slots, W convolution width, n drafted tokens a sequence. Results
are rounded to the input's type; everything between two roundings is float32. README.md here has the pictures.

Caches, windows, pools and scale buffers are written in place; results are fresh. An index outside its buffer,
or a buffer that is too small, raises torch's own error.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.inkling_attn_prologue import mxfp8
from kernels.inkling_attn_prologue.mxfp8 import HEAD

Result = tuple[Tensor, Tensor, Tensor, Tensor | None]
"""q [T, dq], k and v [T, dkv]; with MXFP8 the scales of q, float8_e8m0fnu [T, dq / 128, 4]."""

SILU_NAMES = ("silu", "swish")
PADDING = -1  # the state slot of a token or sequence that has none


@dataclass(frozen=True)
class Projection:
    """The arguments that say what becomes of a token's row; the three prologues share them."""

    qkvr: Tensor
    k_weight: Tensor
    v_weight: Tensor
    q_gamma: Tensor
    k_gamma: Tensor
    eps: float
    q_off: int
    k_off: int
    v_off: int
    dq: int
    dkv: int
    activation: str | None
    use_residual: bool
    log_scaling_tau: Tensor | None

    @property
    def tokens(self) -> int:
        """T."""
        return self.qkvr.shape[0]

    @property
    def earlier(self) -> int:
        """W - 1: inputs that the convolution reads before the current one."""
        return self.k_weight.shape[1] - 1

    def slice(self, offset: int, width: int) -> Tensor:
        """[T, width] of the rows; `offset` counts from the tensor's first element, and may pass its width."""
        start = self.qkvr.storage_offset() + offset
        return self.qkvr.as_strided((self.tokens, width), (self.qkvr.stride(0), 1), start)

    def inputs(self) -> tuple[Tensor, Tensor]:
        """What k's and v's convolutions read, [T, dkv] each."""
        return self.slice(self.k_off, self.dkv), self.slice(self.v_off, self.dkv)

    def q(self) -> Tensor:
        """Normalised queries, scaled by tau after the norm's rounding."""
        q = _norm(self.slice(self.q_off, self.dq), self.q_gamma, self.eps)
        tau = self.log_scaling_tau
        if tau is None or tau.numel() == 0:
            return q
        factor = tau.reshape(-1).float()[: self.tokens].view(self.tokens, 1)
        return (q.float() * factor).to(q.dtype)

    def k(self, history: Iterable[Tensor]) -> Tensor:
        """Convolved, then normalised keys; `history` is each token's W - 1 earlier inputs, oldest first."""
        return _norm(self._convolved(self.k_off, self.k_weight, history), self.k_gamma, self.eps)

    def v(self, history: Iterable[Tensor]) -> Tensor:
        """Convolved values."""
        return self._convolved(self.v_off, self.v_weight, history)

    def _convolved(self, offset: int, weight: Tensor, history: Iterable[Tensor]) -> Tensor:
        """Σ tap · weight in order of time, then activation and residual.

        A product of two bfloat16 is exact in float32, so that adding it is the kernel's fused multiply-add.
        """
        x = self.slice(offset, self.dkv).float()
        taps = self.earlier + 1
        weights = weight[: self.dkv, :taps].reshape(self.dkv, taps).float()
        total = torch.zeros_like(x)
        for index, tap in enumerate((*history, x)):
            total = total + tap * weights[:, index]
        if self.activation in SILU_NAMES:
            total = total / (1.0 + torch.exp(-total))
        if self.use_residual:
            total = total + x
        return total.to(self.qkvr.dtype)


@dataclass(frozen=True)
class Pool:
    """Where keys and values are stored, and how."""

    loc: Tensor
    k_buf: Tensor
    v_buf: Tensor
    do_store: bool
    mxfp8_quant: bool
    sfk: Tensor | None
    sfv: Tensor | None
    page_size: int

    def finish(self, q: Tensor, k: Tensor, v: Tensor, skipped: Tensor | None = None) -> Result:
        """Store k and v of every token that has a slot and is not skipped; quantize q where asked."""
        if self.do_store:
            slots = self.loc.reshape(-1)[: len(k)]
            stored = slots >= 0 if skipped is None else (slots >= 0) & ~skipped
            self._store(self.k_buf, self.sfk, slots[stored], k[stored])
            self._store(self.v_buf, self.sfv, slots[stored], v[stored])
        if not self.mxfp8_quant:
            return q, k, v, None
        codes, scales = mxfp8.quantize(q)
        return codes, k, v, scales.view(torch.float8_e8m0fnu)

    def _store(self, pool: Tensor, scale_buffer: Tensor | None, slots: Tensor, rows: Tensor) -> None:
        held = pool.view(-1, rows.shape[1])
        if not self.mxfp8_quant:
            held[slots] = rows
            return
        assert scale_buffer is not None
        codes, scales = mxfp8.quantize(rows)
        held.view(torch.uint8)[slots] = codes.view(torch.uint8)
        mxfp8.store_scales(scale_buffer, slots, scales, self.page_size)


def decode(
    projection: Projection,
    pool: Pool,
    k_cache: Tensor,
    v_cache: Tensor,
    cache_indices: Tensor,
    cache_mask: Tensor,
    track_mask: Tensor | None,
    track_indices: Tensor | None,
) -> Result:
    """One token a sequence: its history is the state, which then loses its oldest row and gains the token."""
    tokens = projection.tokens
    slots, kept = _per_owner(cache_indices, tokens).long(), _per_owner(cache_mask, tokens).bool()
    present = slots != PADDING
    k_state, v_state = (_state(cache, slots, projection) for cache in (k_cache, v_cache))

    k = projection.k(_gated(k_state, kept).unbind(1))
    v = projection.v(_gated(v_state, kept).unbind(1))
    result = pool.finish(projection.q(), k, v, skipped=~present)

    for cache, state, x in zip((k_cache, v_cache), (k_state, v_state), projection.inputs(), strict=True):
        # A select, not the convolution's product: NaN in a masked state ends here.
        old = torch.where(kept.view(-1, 1, 1), state, 0.0)
        new = torch.cat([old[:, 1:], x.unsqueeze(1)], dim=1)
        _write_state(cache, slots[present], new[present])
        if track_mask is not None and track_indices is not None:
            tracked = _per_owner(track_mask, tokens).bool() & present
            _write_state(cache, _first_of_each(track_indices)[:tokens][tracked], new[tracked])
    return result


def verify(
    projection: Projection,
    pool: Pool,
    k_cache: Tensor,
    v_cache: Tensor,
    cache_indices: Tensor,
    cache_mask: Tensor,
    k_inter: Tensor,
    v_inter: Tensor,
    draft_token_num: int,
) -> Result:
    """n drafted tokens a sequence: the state stays, and the state after each token goes into its window."""
    sequences, drafted, earlier = cache_indices.numel(), draft_token_num, projection.earlier
    slots = _per_owner(cache_indices, sequences).long()
    present = slots != PADDING
    kept = _per_owner(cache_mask, sequences).bool() & present
    histories: list[list[Tensor]] = []
    for cache, window, rows in zip((k_cache, v_cache), (k_inter, v_inter), projection.inputs(), strict=True):
        x = rows.view(sequences, drafted, projection.dkv)
        state = _state(cache, slots, projection)
        stream = torch.cat([_gated(state, kept), x.float()], dim=1)
        histories.append([stream[:, tap : tap + drafted].flatten(0, 1) for tap in range(earlier)])

        raw = torch.cat([state, x], dim=1)
        after = torch.stack([raw[:, t + 1 : t + 1 + earlier] for t in range(drafted)], dim=1)
        target = window[:sequences, :drafted, :earlier, : projection.dkv]
        target[present] = after[present]
    k_history, v_history = histories
    return pool.finish(projection.q(), projection.k(k_history), projection.v(v_history))


def extend(
    projection: Projection,
    pool: Pool,
    k_cache: Tensor,
    v_cache: Tensor,
    cache_indices: Tensor,
    cache_mask: Tensor,
    has_initial_state: Tensor,
    cu: Tensor,
    si: Tensor,
    track_rows: Tensor,
    track_mask: Tensor,
    track_dst: Tensor,
    do_cache_update: bool,
) -> Result:
    """Sequences of any length: a token's history is its sequence, before that the state; the end is kept."""
    sequences = cache_indices.numel()
    slots = _per_owner(cache_indices, sequences).long()
    kept = _per_owner(cache_mask, sequences).bool()
    owner = _per_owner(si, projection.tokens).long()
    states = [_state(cache, slots, projection) for cache in (k_cache, v_cache)]
    inputs = projection.inputs()

    k_history, v_history = (
        list(_history(_gated(state, kept), x.float(), cu, owner))
        for state, x in zip(states, inputs, strict=True)
    )
    result = pool.finish(projection.q(), projection.k(k_history), projection.v(v_history))

    if do_cache_update and projection.tokens:
        for cache, state, x in zip((k_cache, v_cache), states, inputs, strict=True):
            _keep_ends(cache, state, slots, has_initial_state, cu, x)
            for sequence in track_mask.reshape(-1).nonzero().flatten().tolist():
                tracked = track_rows.reshape(-1)[: sequences * projection.earlier].view(sequences, -1)
                rows = x.index_select(0, tracked[sequence])
                slot = _first_of_each(track_dst)[sequence : sequence + 1]
                _write_state(cache, slot, rows.unsqueeze(0))
    return result


def _history(state: Tensor, x: Tensor, cu: Tensor, owner: Tensor) -> Iterator[Tensor]:
    """Earlier inputs of each token, [T, dkv], oldest first: its sequence's state, then that sequence's x."""
    _, earlier, width = state.shape
    first = cu.reshape(-1).index_select(0, owner)
    of_token = state.index_select(0, owner)
    for tap in range(earlier):
        position = torch.arange(len(x), device=x.device) - earlier + tap
        inside = position >= first
        row = torch.where(inside, 0, position - first + earlier)
        before = of_token.gather(1, row.view(-1, 1, 1).expand(-1, 1, width)).squeeze(1)
        yield torch.where(inside.unsqueeze(1), x.index_select(0, position.clamp_min(0)), before)


def _keep_ends(
    cache: Tensor, state: Tensor, slots: Tensor, has_initial_state: Tensor, cu: Tensor, x: Tensor
) -> None:
    """The last W - 1 rows of each sequence, preceded by its old state or zeros, become its state."""
    earlier = state.shape[1]
    starts, has_old = cu.reshape(-1).tolist(), has_initial_state.reshape(-1).tolist()
    for sequence, slot in enumerate(slots.tolist()):
        start, length = starts[sequence], starts[sequence + 1] - starts[sequence]
        if slot == PADDING or length <= 0:
            continue
        old = state[sequence] if has_old[sequence] else torch.zeros_like(state[sequence])
        stream = torch.cat([old, x.narrow(0, start, length)])
        new = stream[len(stream) - earlier :]
        _write_state(cache, slots[sequence : sequence + 1], new.unsqueeze(0))


def _norm(x: Tensor, gamma: Tensor, eps: float) -> Tensor:
    """Root mean square norm of each head of [T, heads · 128], in x's type."""
    heads = x.float().contiguous().view(len(x), x.shape[1] // HEAD, HEAD)
    inverse = 1.0 / torch.sqrt(heads.square().sum(-1, keepdim=True) / HEAD + float(eps))
    return (heads * inverse * gamma.reshape(HEAD).float()).to(x.dtype).view(x.shape)


def _per_owner(values: Tensor, owners: int) -> Tensor:
    """One value for each token or sequence, [owners]; the tensor may be longer or have unit dimensions."""
    return values.reshape(-1)[:owners].view(owners)


def _first_of_each(values: Tensor) -> Tensor:
    """One value for each entry of the first dimension: the kernel goes from one to the next by its stride."""
    return values.reshape(len(values), -1)[:, 0]


def _state(cache: Tensor, slots: Tensor, projection: Projection) -> Tensor:
    """Copies of each owner's rows, [owners, W - 1, dkv]; padding reads slot 0, as the kernel does."""
    slots = torch.where(slots == PADDING, 0, slots)
    rows = cache[:, : projection.earlier, : projection.dkv].index_select(0, slots)
    return rows.reshape(len(slots), projection.earlier, projection.dkv)


def _gated(state: Tensor, kept: Tensor) -> Tensor:
    """state · (kept ? 1 : 0) in float32. A product, as in the kernel: NaN in a masked state stays NaN."""
    return state.float() * kept.float().view(-1, 1, 1)


def _write_state(cache: Tensor, slots: Tensor, rows: Tensor) -> None:
    """Put rows [n, W - 1, dkv] into their slots; the rest of the cache keeps its bytes."""
    _, earlier, width = rows.shape
    cache[:, :earlier, :width].index_copy_(0, slots, rows)
