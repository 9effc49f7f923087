"""Complete a partial prologue call, and say what its tensors hold so that no index leaves its buffer."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

from kernels.dtypes import DType
from kernels.inkling_attn_prologue.derived import elements
from kernels.inkling_attn_prologue.signature import (
    HEAD,
    DecodeCall,
    ExtendCall,
    PrologueCall,
    VerifyCall,
)
from kernels.spec import TensorSpec
from kernels.values import Arange, Full, Listed, Ones, Randint, Randn, Values, Zeros

LISTED_LIMIT = 4096
"""Longest index list that is written out; a longer one must be an arithmetic sequence."""


@dataclass(frozen=True)
class Given:
    """The arguments a user gave, asked for sizes; the first that has one decides, in signature order."""

    arguments: Mapping[str, Any]

    def tensor(self, name: str) -> TensorSpec | None:
        """A tensor that was given."""
        value = self.arguments.get(name)
        return value if isinstance(value, TensorSpec) else None

    def whole(self, name: str) -> int | None:
        """A positive whole number that was given."""
        value = self.arguments.get(name)
        return value if type(value) is int and value > 0 else None

    def size(self, dim: int, *names: str) -> int | None:
        """Size `dim` of the first of these tensors that has one."""
        return next(self._sizes(dim, names), None)

    def _sizes(self, dim: int, names: tuple[str, ...]) -> Iterator[int]:
        for name in names:
            tensor = self.tensor(name)
            if tensor is not None and tensor.ndim > dim:
                yield tensor.shape[dim]

    @cached_property
    def device(self) -> str:
        """The first tensor's."""
        return next(
            (value.device for value in self.arguments.values() if isinstance(value, TensorSpec)), "cuda"
        )

    @property
    def taps(self) -> int:
        """W."""
        history = self.size(1, "k_cache", "v_cache")
        if history is None:
            taps = self.size(1, "k_weight", "v_weight")
            if taps is not None:
                return max(taps, 1)
            history = self.size(2, "k_inter", "v_inter")
        return 4 if history is None else history + 1

    @property
    def dkv(self) -> int:
        """The argument, else the width of whatever holds keys or values."""
        for found in (
            self.whole("dkv"),
            self.size(2, "k_cache", "v_cache"),
            self.size(0, "k_weight", "v_weight"),
            self.size(3, "k_inter", "v_inter"),
        ):
            if found:
                return found
        for name in ("k_buf", "v_buf"):
            pool = self.tensor(name)
            if pool is not None and pool.ndim > 1 and pool.numel:
                return prod(pool.shape[1:])
        heads = self.size(1, "sfk", "sfv")
        return HEAD * heads if heads else HEAD

    @property
    def dq(self) -> int:
        """The argument, else what lies between the q and k offsets, else what k and v leave of a row."""
        found = self.whole("dq")
        if found:
            return found
        k_off, qkvr = self.whole("k_off"), self.tensor("qkvr")
        if k_off:
            return max(k_off - (self.whole("q_off") or 0), HEAD)
        if qkvr is None or qkvr.ndim < 2:
            return 2 * HEAD
        whole_row = qkvr.strides[0] <= qkvr.shape[1]
        width = qkvr.shape[1] - (2 * self.dkv if whole_row else 0)
        return max(width // HEAD, 1) * HEAD

    @property
    def page(self) -> int:
        """Slots a page."""
        return self.whole("page_size") or HEAD

    def pool_slots(self, tokens: int) -> int:
        """S: that of the pool given, else whole pages with room to spare."""
        found = self.size(0, "k_buf", "v_buf")
        if found is not None:
            return found
        pages = self.size(0, "sfk", "sfv")
        return (2 * -(-max(tokens, 1) // self.page) if pages is None else pages) * self.page

    def new(self, shape: tuple[int, ...], dtype: DType = DType.BF16) -> TensorSpec:
        """A tensor on the given ones' device."""
        return TensorSpec(shape, dtype, device=self.device)


def _shared(given: Given, tokens: int, sequences: int) -> dict[str, Any]:
    """The required arguments that all three have."""
    dkv, dq, taps = given.dkv, given.dq, given.taps
    state_slots = given.size(0, "k_cache", "v_cache")
    if state_slots is None:
        state_slots = max(8, 2 * sequences)
    cache = given.new((state_slots, taps - 1, dkv))
    quantized = given.arguments.get("mxfp8_quant") is True
    pool = given.new(
        (given.pool_slots(tokens), max(dkv // HEAD, 1), HEAD), DType.F8_E4M3FN if quantized else DType.BF16
    )
    q_off = given.whole("q_off") or 0
    k_off = given.whole("k_off") or q_off + dq
    v_off = given.whole("v_off") or k_off + dkv
    return {
        "qkvr": given.new((tokens, max(q_off + dq, k_off + dkv, v_off + dkv))),
        "k_cache": given.tensor("v_cache") or cache,
        "v_cache": given.tensor("k_cache") or cache,
        "cache_indices": given.new((sequences,), DType.I32),
        "cache_mask": given.new((sequences,), DType.BOOL),
        "k_weight": given.tensor("v_weight") or given.new((dkv, taps)),
        "v_weight": given.tensor("k_weight") or given.new((dkv, taps)),
        "q_gamma": given.new((HEAD,)),
        "k_gamma": given.new((HEAD,)),
        "eps": 1e-6,
        "loc": given.new((tokens,), DType.I64),
        "k_buf": given.tensor("v_buf") or pool,
        "v_buf": given.tensor("k_buf") or pool,
        "q_off": q_off,
        "k_off": k_off,
        "v_off": v_off,
        "dq": dq,
        "dkv": dkv,
    }


def fit_decode(arguments: Mapping[str, Any]) -> DecodeCall:
    """Complete a decode call: T from the first tensor that has it, else 3."""
    given = Given(arguments)
    tokens = given.size(0, "qkvr", "cache_indices", "cache_mask", "loc", "track_mask")
    if tokens is None:
        tokens = 3
    return DecodeCall(**_shared(given, tokens, tokens) | dict(arguments))


def fit_verify(arguments: Mapping[str, Any]) -> VerifyCall:
    """Complete a verify call: of T, B and n, whichever are given decide the rest; else 2 sequences of 3."""
    given = Given(arguments)
    tokens = given.size(0, "qkvr", "loc")
    sequences = given.size(0, "cache_indices", "cache_mask", "k_inter", "v_inter")
    drafted = given.whole("draft_token_num") or given.size(1, "k_inter", "v_inter")
    if sequences is None:
        sequences = 2 if tokens is None else tokens // drafted if drafted else _halves(tokens)
    if drafted is None:
        drafted = 3 if tokens is None else max(tokens // sequences, 1) if sequences else 1
    if tokens is None:
        tokens = sequences * drafted
    shared = _shared(given, tokens, sequences)
    window = given.new((sequences, drafted, given.taps - 1, given.dkv))
    own = {
        "k_inter": given.tensor("v_inter") or window,
        "v_inter": given.tensor("k_inter") or window,
        "draft_token_num": drafted,
    }
    return VerifyCall(**shared | own | dict(arguments))


def fit_extend(arguments: Mapping[str, Any]) -> ExtendCall:
    """Complete an extend call: T and B from the first tensors that have them, else 2 sequences of 3."""
    given = Given(arguments)
    tokens = given.size(0, "qkvr", "si", "loc")
    sequences = given.size(0, "cache_indices", "cache_mask", "has_initial_state")
    if sequences is None:
        bounds = given.size(0, "cu")
        tracked = given.size(0, "track_mask", "track_dst") or None
        sequences = tracked if bounds is None else max(bounds - 1, 0)
    if sequences is None:
        sequences = 2 if tokens is None else _halves(tokens)
    if tokens is None:
        tokens = 3 * sequences
    own = {
        "has_initial_state": given.new((sequences,), DType.BOOL),
        "cu": given.new((sequences + 1,), DType.I64),
        "si": given.new((tokens,), DType.I32),
        "track_rows": given.new((sequences, given.taps - 1), DType.I64),
        "track_mask": given.new((sequences,), DType.BOOL),
        "track_dst": given.new((sequences,), DType.I64),
    }
    return ExtendCall(**_shared(given, tokens, sequences) | own | dict(arguments))


def _halves(tokens: int) -> int:
    """Sequences for so many tokens: two of one length where that is possible."""
    return min(tokens, 1 if tokens % 2 else 2)


def _shared_fill(call: PrologueCall) -> dict[str, Values]:
    """Moderate numbers, zeroed buffers, a state slot and a pool slot of its own for each."""
    state_slots = call.k_cache.shape[0] if call.k_cache.ndim else 0
    pool_slots = min((pool.shape[0] for pool in (call.k_buf, call.v_buf) if pool.ndim), default=0)
    owned = call.cache_indices.values or _distinct(call.cache_indices.numel, state_slots)
    return {
        "qkvr": Randn(),
        "k_cache": Randn(),
        "v_cache": Randn(),
        "cache_indices": owned,
        "cache_mask": _kept(owned),
        "k_weight": Randn(std=0.5),
        "v_weight": Randn(std=0.5),
        "q_gamma": Randn(mean=1.0, std=0.1),
        "k_gamma": Randn(mean=1.0, std=0.1),
        "loc": _distinct(call.loc.numel, pool_slots),
        "k_buf": Zeros(),
        "v_buf": Zeros(),
        "sfk": Zeros(),
        "sfv": Zeros(),
        "log_scaling_tau": Randn(mean=1.0, std=0.1),
    }


def fill_decode(call: DecodeCall) -> Mapping[str, Values]:
    """Every token tracked, where there are slots that no token works in."""
    tracked = _spare(call)
    own = {"track_mask": Ones() if tracked else Zeros(), "track_indices": tracked or Zeros()}
    return _of(call, _shared_fill(call) | own)


def fill_verify(call: VerifyCall) -> Mapping[str, Values]:
    """Windows zeroed."""
    return _of(call, _shared_fill(call) | {"k_inter": Zeros(), "v_inter": Zeros()})


def fill_extend(call: ExtendCall) -> Mapping[str, Values]:
    """Sequences as equal as can be; all tracked, where there are slots that none works in."""
    tokens, sequences = _rows(call), max(call.cu.numel - 1, 0)
    tracked = _spare(call) if tokens else None
    starts, owned = elements(call.cu, sequences + 1), elements(call.si, tokens)
    own = {
        "has_initial_state": Ones(),
        "cu": _starts(tokens, sequences) if owned is None else _starts_of(owned, sequences),
        "si": _owners(tokens, sequences) if starts is None else _owners_of(starts, tokens),
        "track_rows": Randint(0, max(tokens, 1)),
        "track_mask": Ones() if tracked else Zeros(),
        "track_dst": tracked or Zeros(),
    }
    return _of(call, _shared_fill(call) | own)


def _of(call: PrologueCall, values: Mapping[str, Values]) -> dict[str, Values]:
    """The generators of the tensors that are present."""
    return {name: values[name] for name, _ in call.tensors()}


def _rows(call: PrologueCall) -> int:
    return call.qkvr.shape[0] if call.qkvr.ndim else 0


def _distinct(count: int, slots: int) -> Values:
    """So many different slots, spread evenly; none (-1) where there are too few."""
    return Arange(0, max(slots // max(count, 1), 1)) if count <= slots else Full(-1)


def _kept(owned: Values) -> Values:
    """The state of all but padding takes part."""
    if isinstance(owned, Listed):
        return Listed(tuple(slot >= 0 for slot in owned.flat()))
    return Zeros() if owned == Full(-1) else Ones()


def _spare(call: PrologueCall) -> Values | None:
    """As many slots that nothing works in as there are owners, where there are."""
    state_slots = call.k_cache.shape[0] if call.k_cache.ndim else 0
    owners = call.cache_indices.numel
    described = call.cache_indices.values
    if described is None:
        step = state_slots // max(owners, 1)
        return Arange(1, step) if step >= 2 else None
    taken = set(described.flat()) if isinstance(described, Listed) else set()
    free = [slot for slot in range(min(state_slots, 2 * LISTED_LIMIT)) if slot not in taken]
    return Listed(tuple(free[:owners])) if taken and 0 < owners <= len(free) else None


def _starts(tokens: int, sequences: int) -> Values:
    """First token of each sequence, then the number of tokens."""
    if not sequences or tokens % sequences == 0 or sequences > LISTED_LIMIT:
        return Arange(0, tokens // max(sequences, 1))
    return Listed(tuple(tokens * index // sequences for index in range(sequences + 1)))


def _owners(tokens: int, sequences: int) -> Values:
    """The sequence of each token, consistent with `_starts`."""
    if sequences <= 1 or not tokens:
        return Zeros()
    if tokens <= LISTED_LIMIT:
        return Listed(tuple(((token + 1) * sequences - 1) // tokens for token in range(tokens)))
    # The half step keeps every quotient away from the whole numbers that it is cut at.
    return Arange(sequences / tokens / 2, sequences / tokens)


def _starts_of(owned: Sequence[float], sequences: int) -> Values:
    """Where each sequence starts, for tokens whose sequences are described."""
    return Listed(tuple(sum(owner < index for owner in owned) for index in range(sequences + 1)))


def _owners_of(starts: Sequence[float], tokens: int) -> Values:
    """The sequence of each token, for sequences whose starts are described."""
    ends = sorted(starts[1:])
    return Listed(tuple(min(bisect_right(ends, token), max(len(ends) - 1, 0)) for token in range(tokens)))
