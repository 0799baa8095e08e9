"""Fit the kernel parameters of each silicon to measured kernels, and write the calibration files.

What is fitted on what:

    matmul     the silicon's 16-bit rows (V100: fp32 too; MI25: fp32); `sustained` where rows of
               both kinds exist, timed alone and continuous; fp8 adds one efficiency
    attention  serving prefill (A100, H100) and, on the A100, forward + backward bars, which also
               give the softmax cost (two head sizes) and the backward rate
    conv       V100 only, each precision and direction alone, relative to the silicon's matmuls
    memory     stream rows
    one row    silicons with only a published best matmul take its level and their family's shape

A family's file is the fit to all its silicons together, each with the same weight; its range
spans what the silicons say alone. No published training run is used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np

from hwmodels.calibration import fit as fitting
from hwmodels.calibration import predict, rows
from hwmodels.calibration.assumptions import DEFAULTS, SYSTOLIC_SHAPE
from hwmodels.calibration.fit import Fit
from hwmodels.calibration.rows import Observation
from hwmodels.kernels import conv
from hwmodels.table import FloatArray

SIXTEEN_BIT = ("bf16", "fp16")
SHAPE = (
    "matmul_k0",
    "matmul_tile_half",
    "matmul_wave_exposure",
    "matmul_memory_efficiency",
    "matmul_start_s",
)
# Silicons with enough matmul rows for a fit of their own, and the dtypes of the main one.
MATMUL_SILICONS: Mapping[str, tuple[str, ...]] = {
    "ga100": SIXTEEN_BIT,
    "gh100": SIXTEEN_BIT,
    "gb100": SIXTEEN_BIT,
    "gv100": ("fp16",),
    "vega10": ("fp32",),
}
# Silicons whose rows tell the sustained clock from the burst one. The GB200's do not: its few
# continuous rows agree with those timed alone.
SUSTAINED_SILICONS = ("ga100", "gh100")
NVIDIA = ("ga100", "gh100", "gb100", "gv100")
BEST_ONLY = ("mi300x", "mi355x", "gaudi2", "gaudi3")
ATTENTION_SILICONS = ("ga100", "gh100")
CONV_SILICONS = ("gv100",)
CONV_STEMS = (
    "conv_rate",
    "conv_strided_rate",
    "conv_fill",
    "conv_tile",
    "conv_memory_efficiency",
    "conv_start_s",
)
_CONTINUOUS_WEIGHT = 3.0  # a handful of continuous rows against hundreds timed alone


def select(
    observations: Sequence[Observation],
    kind: str,
    silicon: str | None = None,
    dtypes: Sequence[str] | None = None,
) -> list[Observation]:
    """The rows of a class that may be fitted, of a silicon and dtypes if given."""
    return [
        o
        for o in observations
        if o.fits
        and o.kind == kind
        and (silicon is None or o.device.silicon == silicon)
        and (dtypes is None or o.dtype in dtypes)
    ]


def matmul_free(
    dtypes: Sequence[str], *, sustained: bool, misaligned: bool
) -> dict[str, list[str]]:
    """Free parameters of a matmul fit, and the per-dtype names that share one value."""
    head = dtypes[0]
    free = {f"matmul_efficiency.{head}": [f"matmul_efficiency.{d}" for d in dtypes]}
    free |= {name: [name] for name in SHAPE}
    if sustained:
        free[f"matmul_sustained.{head}"] = [f"matmul_sustained.{d}" for d in dtypes]
        free["matmul_boost_s"] = ["matmul_boost_s"]
    if misaligned:
        free["matmul_misaligned_efficiency"] = ["matmul_misaligned_efficiency"]
    return free


def matmul_fit(observations: Sequence[Observation], silicon: str) -> Fit:
    """Matmul parameters of one silicon from the rows of its main dtypes, which share a level."""
    dtypes = MATMUL_SILICONS[silicon]
    sustained = silicon in SUSTAINED_SILICONS
    free = matmul_free(dtypes, sustained=sustained, misaligned=silicon in ("gv100", "vega10"))
    burst = np.array([o.burst for o in observations])
    weights = np.where(sustained & ~burst, _CONTINUOUS_WEIGHT, 1.0)
    fixed = dict(DEFAULTS) | {f"matmul_sustained.{d}": 1.0 for d in dtypes}
    return fitting.fit(observations, free, fixed, weights)


def level_fit(observations: Sequence[Observation], dtype: str, fixed: Mapping[str, float]) -> Fit:
    """One efficiency for `dtype`, everything else given."""
    name = f"matmul_efficiency.{dtype}"
    return fitting.fit(observations, {name: [name]}, fixed)


def pooled_matmul(
    observations: Sequence[Observation], silicons: Sequence[str]
) -> dict[str, float]:
    """One set of 16-bit matmul parameters for several silicons, each with the same weight."""
    chosen = [
        o
        for o in select(observations, "matmul", dtypes=SIXTEEN_BIT)
        if o.device.silicon in silicons
    ]
    free = matmul_free(SIXTEEN_BIT, sustained=True, misaligned=False)
    return fitting.solve(chosen, free, DEFAULTS, _equal_weights(chosen))


def attention_free(silicons: Sequence[str]) -> dict[str, list[str]]:
    """Free parameters of an attention fit; softmax and backward need the A100's bars."""
    names = ["attention_efficiency", "attention_start_s", "attention_block_occupancy"]
    names += ["attention_diagonal", "attention_cache_passes"]
    if "ga100" in silicons:
        names += ["attention_softmax_flop_per_pair", "attention_backward_ratio"]
    return {name: [name] for name in names}


def attention_rows(
    observations: Sequence[Observation], silicons: Sequence[str]
) -> list[Observation]:
    """Rows of today's fused attention on these silicons."""
    return [
        o
        for o in select(observations, "attention")
        if o.device.silicon in silicons and o.implementation == "current"
    ]


def attention_fit(
    observations: Sequence[Observation],
    silicons: Sequence[str],
    fixed: Mapping[str, float],
) -> Fit:
    """Fused attention of the silicons together; both sources of a silicon weigh the same."""
    chosen = attention_rows(observations, silicons)
    return fitting.fit(chosen, attention_free(silicons), fixed, _equal_weights(chosen))


def implementation_fits(
    observations: Sequence[Observation], fixed: Mapping[str, float]
) -> dict[str, Fit]:
    """Rate of older fused kernels relative to the current one, from the A100's bars."""
    fits = {}
    for name in ("flash1", "triton", "xformers"):
        chosen = [o for o in select(observations, "attention") if o.implementation == name]
        parameter = f"attention_relative_rate.{name}"
        fits[parameter] = fitting.fit(chosen, {parameter: [parameter]}, fixed)
    return fits


def conv_free(precision: str, direction: conv.Direction) -> list[str]:
    """Free parameters of the convolutions of one precision and direction."""
    own = f"{precision}.{direction}"
    names = [f"{stem}.{own}" for stem in CONV_STEMS]
    if precision == "fp32":
        names.append(f"conv_winograd_rate.{direction}")
        return [*names, "conv_pointwise_rate.fp32.wgrad"] if direction == "wgrad" else names
    return [*names, "conv_misaligned_rate"] if direction == "forward" else names


def conv_rows(
    observations: Sequence[Observation], silicon: str, precision: str, direction: str
) -> list[Observation]:
    """Rows of convolutions of a silicon in one precision and direction."""
    chosen = select(observations, "conv", silicon, (precision,))
    return [o for o in chosen if o.direction == direction]


def conv_fits(
    observations: Sequence[Observation], silicon: str, fixed: Mapping[str, float]
) -> dict[str, Fit]:
    """Each precision and direction alone; odd channels take one rate, the forward pass's."""
    fits: dict[str, Fit] = {}
    known = dict(fixed)
    for precision in conv.PRECISIONS:
        for direction in conv.DIRECTIONS:
            chosen = conv_rows(observations, silicon, precision, direction)
            free = {name: [name] for name in conv_free(precision, direction)}
            found = fits[f"conv.{precision}.{direction}"] = fitting.fit(chosen, free, known)
            known |= found.values
    return fits


def memory_fit(observations: Sequence[Observation], silicon: str) -> Fit:
    """Share of the nominal memory rate that streams reach."""
    chosen = select(observations, "memory rate", silicon)
    return fitting.fit(chosen, {"memory_efficiency": ["memory_efficiency"]}, _stream_fixed())


def best_matmul_fits(
    observations: Sequence[Observation], shape: Mapping[str, float]
) -> dict[str, dict[str, Fit]]:
    """Levels of silicons with only a published best matmul, on another's shape parameters."""
    fits: dict[str, dict[str, Fit]] = {}
    systolic = {name: entry.value for name, entry in SYSTOLIC_SHAPE.items()}
    fixed = {name: value for name, value in shape.items() if name in SHAPE}
    fixed = {**DEFAULTS, **fixed}
    for silicon in BEST_ONLY:
        own = systolic if silicon.startswith("gaudi") else {}
        for dtype in ("bf16", "fp8"):
            chosen = select(observations, "matmul", silicon, (dtype,))
            if chosen:
                given = {**fixed, **own, f"matmul_sustained.{dtype}": 1.0}
                found = fits.setdefault(silicon, {})
                found[f"matmul.{dtype}"] = level_fit(chosen, dtype, given)
    return fits


@lru_cache(maxsize=1)
def fit_silicons() -> Mapping[str, Mapping[str, Fit]]:
    """Every fit, by silicon and class (`matmul`, `matmul.fp8`, `attention`, ...)."""
    observations, _ = rows.read()
    fits: dict[str, dict[str, Fit]] = {}
    for silicon, dtypes in MATMUL_SILICONS.items():
        found = fits.setdefault(silicon, {})
        found["matmul"] = matmul_fit(select(observations, "matmul", silicon, dtypes), silicon)
        for dtype in ("fp8", "fp32"):
            extra = select(observations, "matmul", silicon, (dtype,))
            if extra and dtype not in dtypes:
                found[f"matmul.{dtype}"] = _other_dtype(extra, dtype, dtypes[0], found["matmul"])
    for silicon in CONV_SILICONS:
        found = fits[silicon]
        fixed = {**DEFAULTS, **found["matmul.fp32"].values, **found["matmul"].values}
        fixed |= {f"matmul_sustained.{dtype}": 1.0 for dtype in conv.PRECISIONS}
        found |= conv_fits(observations, silicon, fixed)
    for silicon in ATTENTION_SILICONS:
        found = fits[silicon]
        found["memory"] = memory_fit(observations, silicon)
        fixed = {**DEFAULTS, **found["matmul"].values, **found["memory"].values}
        softmax = fits["ga100"].get("attention")
        if softmax is not None:
            name = "attention_softmax_flop_per_pair"
            fixed[name] = softmax.values[name]
        found["attention"] = attention_fit(observations, (silicon,), fixed)
        if silicon == "ga100":
            fixed |= found["attention"].values
            found |= implementation_fits(observations, fixed)
    return fits


def left_out_silicon(silicon: str) -> tuple[list[Observation], FloatArray]:
    """16-bit matmul rows of a silicon, and their seconds by the fit to NVIDIA's others."""
    observations, _ = rows.read()
    others = [other for other in NVIDIA if other != silicon]
    values = {**DEFAULTS, **pooled_matmul(observations, others)}
    chosen = select(observations, "matmul", silicon, SIXTEEN_BIT)
    return chosen, predict.seconds(predict.grouped(chosen), values)


def left_out_attention(silicon: str) -> tuple[list[Observation], FloatArray]:
    """Attention rows of a silicon, and their seconds by the other's parameters."""
    observations, _ = rows.read()
    (other,) = (s for s in ATTENTION_SILICONS if s != silicon)
    fits = fit_silicons()
    known = {**DEFAULTS, **fits[other]["matmul"].values, **fits[other]["memory"].values}
    if other == "gh100":
        known["attention_softmax_flop_per_pair"] = _softmax_without_bars()
    values = {**known, **attention_fit(observations, (other,), known).values}
    chosen = attention_rows(observations, (silicon,))
    return chosen, predict.seconds(predict.grouped(chosen), values)


def _softmax_without_bars() -> float:
    # Without the A100's two head sizes the split of matrix and vector work is an assumption.
    return fitting.bounds("attention_softmax_flop_per_pair")[2][0]


def _other_dtype(extra: Sequence[Observation], dtype: str, head: str, main: Fit) -> Fit:
    fixed = {**DEFAULTS, **main.values}
    fixed[f"matmul_sustained.{dtype}"] = main.values.get(f"matmul_sustained.{head}", 1.0)
    return level_fit(extra, dtype, fixed)


def _equal_weights(observations: Sequence[Observation]) -> FloatArray:
    keys = [(o.device.silicon, o.prefix) for o in observations]
    count = {key: keys.count(key) for key in set(keys)}
    weights = np.array([1.0 / np.sqrt(count[key]) for key in keys])
    return np.asarray(weights * np.sqrt(len(keys) / np.sum(weights**2)), dtype=float)


def _stream_fixed() -> dict[str, float]:
    return {**DEFAULTS, "matmul_efficiency.bf16": 1.0, "matmul_sustained.bf16": 1.0}
