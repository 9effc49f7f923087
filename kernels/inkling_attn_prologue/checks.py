"""The three inkling prologues: every check in upstream's order, then our own."""

from __future__ import annotations

from typing import Any

from kernels.checking import Check
from kernels.inkling_attn_prologue.allocation import ALLOCATION
from kernels.inkling_attn_prologue.beyond import (
    GammaMisread,
    LocMisread,
    MaskMisread,
    NotOnOneGpu,
    PoolMisread,
    SequenceMisread,
    StateMisread,
    StateSlotsNotWhole,
    TrackSlotsMisread,
)
from kernels.inkling_attn_prologue.beyond_layout import ON_LAYOUT
from kernels.inkling_attn_prologue.beyond_sequences import SequencesOutOfStep
from kernels.inkling_attn_prologue.beyond_settings import ON_SETTINGS
from kernels.inkling_attn_prologue.beyond_sizes import ON_SIZES, TrackMaskTooLong
from kernels.inkling_attn_prologue.beyond_values import (
    LocOutOfRange,
    MaskedStateNotFinite,
    PaddingNotMasked,
    SlotsShared,
    StateSlotOutOfRange,
    TrackedRowsOutOfRange,
    TrackSlotOutOfRange,
)
from kernels.inkling_attn_prologue.compiler import COMPILED
from kernels.inkling_attn_prologue.completion import (
    fill_decode,
    fill_extend,
    fill_verify,
    fit_decode,
    fit_extend,
    fit_verify,
)
from kernels.inkling_attn_prologue.conversion import CONVERSION, TrackIndicesMissing
from kernels.inkling_attn_prologue.dimensions import (
    IndicesDimensions,
    InitialMasksDimensions,
    MasksDimensions,
    OwnersDimensions,
    QkvrDimensions,
    StartsDimensions,
    StateDimensions,
    TrackDimensions,
    VStateDimensions,
    VWindowDimensions,
    WeightDimensions,
    WindowDimensions,
)
from kernels.inkling_attn_prologue.launcher import (
    OffsetsUnaligned,
    QkvrRowsUnaligned,
    QueryLanesSplitHeads,
    TauNotFloat32,
    TauStrided,
    TauTooShort,
    TooManyLanes,
    WidthsSplitHeads,
)
from kernels.inkling_attn_prologue.launcher_pool import (
    DecodeStoreRequired,
    ExtendStoreRequired,
    StoreRequired,
    on_pools,
)
from kernels.inkling_attn_prologue.launcher_sequences import (
    DraftsDoNotTileTokens,
    LaunchFailed,
    MasksNotPerSequence,
    OwnersTooFew,
    StartsNotPerSequence,
    TrackRowsMissing,
)
from kernels.inkling_attn_prologue.launcher_state import (
    PoolStridesDiffer,
    StateChannelsStrided,
    StateStridesDiffer,
    WindowsStrided,
)
from kernels.inkling_attn_prologue.parts import staged
from kernels.inkling_attn_prologue.python_checks import (
    PAGE_SIZE,
    DecodeHeadsNotAligned,
    DecodeScaleBufferGaps,
    DecodeScaleBufferShape,
    DecodeScaleBuffersMissing,
    HeadsNotAligned,
    ScaleBufferGaps,
    ScaleBufferShape,
    ScaleBuffersMissing,
)
from kernels.inkling_attn_prologue.python_errors import (
    KBufHasNoSlots,
    QkvrHasNoRows,
    WidthIsNotANumber,
    WidthIsText,
)
from kernels.inkling_attn_prologue.signature import PYTHON, DecodeCall, ExtendCall, VerifyCall
from kernels.registry import Operation

BEFORE = (QkvrHasNoRows, WidthIsNotANumber, WidthIsText)

IN_PYTHON: tuple[type[Check[Any]], ...] = (
    *BEFORE,
    HeadsNotAligned,
    ScaleBuffersMissing,
    KBufHasNoSlots,
    *PAGE_SIZE,
    ScaleBufferShape,
    ScaleBufferGaps,
    *ALLOCATION,
    *COMPILED,
    *CONVERSION,
)

IN_PYTHON_DECODE: tuple[type[Check[Any]], ...] = (
    *BEFORE,
    DecodeHeadsNotAligned,
    DecodeScaleBuffersMissing,
    KBufHasNoSlots,
    *PAGE_SIZE,
    DecodeScaleBufferShape,
    DecodeScaleBufferGaps,
    *ALLOCATION,
    *COMPILED,
    *CONVERSION,
    TrackIndicesMissing,
)

ON_ROWS = (WidthsSplitHeads, QueryLanesSplitHeads, QkvrDimensions, QkvrRowsUnaligned, OffsetsUnaligned)
ON_STATE = (StateDimensions, StateChannelsStrided, VStateDimensions)
ON_STATE_STRIDES = (StateStridesDiffer, WeightDimensions)
ON_TAU = (TauNotFloat32, TauStrided, TauTooShort)

ON_TYPES = (NotOnOneGpu, LocMisread, MaskMisread, StateSlotsNotWhole, GammaMisread, StateMisread, PoolMisread)
ON_VALUES = (LocOutOfRange, StateSlotOutOfRange, SlotsShared, MaskedStateNotFinite)

BEYOND = (*ON_TYPES, *ON_SIZES, *ON_LAYOUT, *ON_VALUES, *ON_SETTINGS)
BEYOND_DECODE = (*BEYOND, TrackSlotsMisread, TrackSlotOutOfRange, PaddingNotMasked)
BEYOND_EXTEND = (*BEYOND, SequenceMisread, TrackMaskTooLong, TrackedRowsOutOfRange, SequencesOutOfStep)

DECODE: tuple[type[Check[Any]], ...] = (
    *IN_PYTHON_DECODE,
    *ON_ROWS,
    *ON_STATE,
    *ON_STATE_STRIDES,
    TooManyLanes,
    PoolStridesDiffer,
    *on_pools(DecodeStoreRequired),
    *ON_TAU,
    TrackDimensions,
    LaunchFailed,
    *BEYOND_DECODE,
)

VERIFY: tuple[type[Check[Any]], ...] = (
    *IN_PYTHON,
    IndicesDimensions,
    DraftsDoNotTileTokens,
    *ON_ROWS,
    PoolStridesDiffer,
    *ON_STATE,
    WindowDimensions,
    WindowsStrided,
    VWindowDimensions,
    TooManyLanes,
    *on_pools(StoreRequired),
    *ON_TAU,
    *ON_STATE_STRIDES,
    LaunchFailed,
    *BEYOND,
)

EXTEND: tuple[type[Check[Any]], ...] = (
    *IN_PYTHON,
    IndicesDimensions,
    *ON_ROWS,
    OwnersDimensions,
    OwnersTooFew,
    StartsDimensions,
    StartsNotPerSequence,
    MasksDimensions,
    MasksNotPerSequence,
    InitialMasksDimensions,
    *ON_STATE,
    *ON_STATE_STRIDES,
    TooManyLanes,
    PoolStridesDiffer,
    TrackRowsMissing,
    *on_pools(ExtendStoreRequired),
    *ON_TAU,
    TrackDimensions,
    LaunchFailed,
    *BEYOND_EXTEND,
)

VALID_DECODE = fit_decode({})
VALID_VERIFY = fit_verify({})
VALID_EXTEND = fit_extend({})


STAGES_DECODE = staged(DECODE, VALID_DECODE)
STAGES_VERIFY = staged(VERIFY, VALID_VERIFY)
STAGES_EXTEND = staged(EXTEND, VALID_EXTEND)

MODULE = "sglang.kernels.ops.attention.inkling_attn_prologue"
STORED = ("k_buf", "v_buf", "sfk", "sfv")

OPERATIONS = (
    Operation(
        name="inkling_attn_prologue_decode",
        title="Inkling attention prologue, decode",
        summary="Normalise q, convolve k and v, normalise k, shift the state, store: one token a sequence",
        call=DecodeCall,
        stages=STAGES_DECODE,
        valid=VALID_DECODE,
        fit=fit_decode,
        fill=fill_decode,
        outputs=("k_cache", "v_cache", *STORED),
        source=PYTHON,
        module=MODULE,
    ),
    Operation(
        name="inkling_attn_prologue_verify",
        title="Inkling attention prologue, verify",
        summary="The prologue for drafted tokens: the state stays, the one after each token is recorded",
        call=VerifyCall,
        stages=STAGES_VERIFY,
        valid=VALID_VERIFY,
        fit=fit_verify,
        fill=fill_verify,
        outputs=("k_inter", "v_inter", *STORED),
        source=PYTHON,
        module=MODULE,
    ),
    Operation(
        name="inkling_attn_prologue_extend",
        title="Inkling attention prologue, extend",
        summary="The prologue for sequences of any length, which leave their last tokens as the new state",
        call=ExtendCall,
        stages=STAGES_EXTEND,
        valid=VALID_EXTEND,
        fit=fit_extend,
        fill=fill_extend,
        outputs=("k_cache", "v_cache", *STORED),
        source=PYTHON,
        module=MODULE,
    ),
)
