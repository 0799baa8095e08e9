"""Fit what link technologies are like to measured collectives, with spread and held-out errors.

A fit minimises a soft-L1 loss of `ln(predicted / measured)` over the numbers of one technology or
of several that share them; predictions come from `hwmodels.collectives` itself, all steps of the
finite differences as hardware rows of one table.

What is fitted on what:

    NVLink 3, 4, 5    rows of one node, all verbs; a chip's sources together, every row alike
    reductions        NVLink 4, whose rows have more than four ranks; NVLink 5 takes them over,
                      as does a fit without NVLink 4 the ring's start and rate
    EFA               two-node all-reduce; the first generation gives the share of the rate, since
                      the second is bound by its nodes; a hop's latency is NCCL's constant, as two
                      nodes do not tell it from the start
    nvlink            one fit to the three NVLinks, each with the same weight
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain

import numpy as np
from scipy.optimize import least_squares

from hwmodels.calibration import collective_rows as rows
from hwmodels.calibration.collective_rows import Observation
from hwmodels.collectives.verbs import FAST, Coefficients, every_cost, seconds
from hwmodels.network import Level
from hwmodels.table import LEVEL_COLUMNS, FloatArray, HardwareTable, IntArray

Numbers = Mapping[str, Mapping[str, float]]
"""Technology to its numbers, by field of `network.Level`."""

FOLDS = 5
NVLINKS = ("nvlink3", "nvlink4", "nvlink5")
EFAS = ("efa", "efa-v2")
REDUCTION = ("reduction_start_s", "reduction_rate")
HOP_S = 4.0e-6  # NCCL tuning source 2.18: network hop, LL128
_LOSS_SCALE = 0.05  # log errors beyond 5 % weigh linearly
_STEP = 1e-4  # of the finite differences, in the fitted coordinates
_NORMAL_80 = 1.2816  # quantile of the central 80 %
# Lower bound, upper bound and starting value of everything that may be fitted.
SEARCH: Mapping[str, tuple[float, float, float]] = {
    "efficiency": (0.4, 1.0, 0.75),
    "latency_s": (1e-7, 4e-6, 9e-7),
    "start_s": (5e-6, 3e-4, 3e-5),
    "fast_start_s": (1e-6, 6e-5, 8e-6),
    "fast_rate": (0.1, 0.9, 0.4),
    "own_share": (0.0, 1.0, 0.4),
    "reduction_start_s": (5e-6, 3e-4, 7e-5),
    "reduction_rate": (0.5, 1.0, 0.85),
    "start_s between nodes": (2e-5, 3e-3, 5e-4),
    "fast_start_s between nodes": (5e-6, 5e-4, 1e-4),
}
_LINEAR = ("own_share", "reduction_rate")  # the others are fitted by their logarithm


@dataclass(frozen=True, slots=True)
class Free:
    """One fitted value.

    Args:
        search: Key of `SEARCH`.
        places: (technology, field) pairs that take the value.
    """

    search: str
    places: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Fit:
    """What a set of rows says about link technologies.

    Args:
        numbers: Technology to its numbers.
        low: Lower ends of their ranges, for those that were fitted.
        high: Upper ends.
        rows: Number of rows fitted.
    """

    numbers: Numbers
    low: Numbers
    high: Numbers
    rows: int


@dataclass(frozen=True, slots=True)
class Group:
    """Observations that one array call predicts.

    Args:
        levels: Their network.
        verb: Their verb.
        algorithm: What their runs were confined to, or empty.
        index: (n,) their places in the sequence that was grouped.
        members: (1, n, nl) ranks that meet at each level.
        message_bytes: (n,) messages.
    """

    levels: tuple[Level, ...]
    verb: str
    algorithm: str
    index: IntArray
    members: IntArray
    message_bytes: FloatArray


def grouped(observations: Sequence[Observation]) -> list[Group]:
    """The observations by network kind, verb and algorithm."""
    places: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for i, o in enumerate(observations):
        places[o.levels, o.verb, o.algorithm].append(i)
    groups = []
    for index in places.values():
        first = observations[index[0]]
        found = [observations[i] for i in index]
        groups.append(
            Group(
                levels=first.levels,
                verb=first.verb,
                algorithm=first.algorithm,
                index=np.array(index, dtype=np.int64),
                members=np.array([[o.members for o in found]], dtype=np.int64),
                message_bytes=np.array([o.message_bytes for o in found], dtype=float),
            )
        )
    return groups


def predict(groups: Sequence[Group], points: Sequence[Numbers]) -> FloatArray:
    """(P, n) seconds of the grouped observations, by each of P sets of numbers.

    A technology that a set does not name is as the rows' networks give it: as shipped.
    """
    out = np.zeros((len(points), sum(group.index.size for group in groups)))
    for group in groups:
        hw = table_of(group, points)
        counts = np.broadcast_to(group.members, (len(points), *group.members.shape[1:]))
        costs = every_cost(group.verb, hw, counts)
        if group.algorithm:
            costs = {k: v for k, v in costs.items() if k.removesuffix(FAST) == group.algorithm}
        alpha_s, s_per_byte = (np.stack(part) for part in zip(*costs.values(), strict=True))
        time_s, _ = seconds(Coefficients(tuple(costs), alpha_s, s_per_byte), group.message_bytes)
        out[:, group.index] = time_s
    return out


def table_of(group: Group, points: Sequence[Numbers]) -> HardwareTable:
    """One row for each set of numbers of the group's network."""
    levels = group.levels

    def column(field: str) -> FloatArray:
        stated = [float(getattr(level, field)) for level in levels]
        return np.array(
            [
                [
                    point.get(level.technology, {}).get(field, value)
                    for level, value in zip(levels, stated, strict=True)
                ]
                for point in points
            ]
        )

    size = np.array([[level.size for level in levels]] * len(points), dtype=np.int64)
    return HardwareTable(
        names=("",) * len(points),
        num_chips=int(np.prod(size[0])),
        chip={},
        level_kinds=tuple(level.kind for level in levels),
        level_size=size,
        level={name: column(field) for name, field in LEVEL_COLUMNS.items()},
        level_reduces=tuple(level.in_network_reduction for level in levels),
        chips_per_node=size[:, 0],
    )


def solve(
    observations: Sequence[Observation],
    free: Sequence[Free],
    fixed: Numbers,
    weights: FloatArray | None = None,
) -> dict[str, dict[str, float]]:
    """The numbers that fit the observations best, the fixed ones among them.

    Args:
        observations: Rows to fit.
        free: What to fit.
        fixed: All other numbers of the technologies concerned.
        weights: (n,) weights of the log errors.
    """
    groups = grouped(observations)
    log_measured = np.log([o.measured_s for o in observations])
    weight = np.ones(len(observations)) if weights is None else weights
    linear = np.array([one.search in _LINEAR for one in free])
    bounds = np.array([SEARCH[one.search] for one in free])
    coordinates = np.where(linear[:, None], bounds, np.log(np.where(bounds > 0, bounds, 1.0)))
    low, high, start = coordinates.T

    def numbers(point: FloatArray) -> dict[str, dict[str, float]]:
        values = np.where(linear, point, np.exp(point))
        merged = {technology: dict(found) for technology, found in fixed.items()}
        for one, value in zip(free, values, strict=True):
            for technology, field in one.places:
                merged.setdefault(technology, {})[field] = float(value)
        return merged

    def errors(points: Sequence[FloatArray]) -> FloatArray:
        predicted = predict(groups, [numbers(point) for point in points])
        return np.asarray((np.log(predicted) - log_measured) * weight, dtype=float)

    def jacobian(point: FloatArray) -> FloatArray:
        # Steps towards the middle of the range, so that none leaves it.
        step = np.where(point > (low + high) / 2, -_STEP, _STEP)
        moved = errors([point, *(point + np.diag(step))])
        return np.asarray(((moved[1:] - moved[0]) / step[:, None]).T, dtype=float)

    found = least_squares(
        lambda point: errors([point])[0],
        start,
        jac=jacobian,
        bounds=(low, high),
        loss="soft_l1",
        f_scale=_LOSS_SCALE,
        x_scale=np.where(linear, 0.3, 1.0),
    )
    return numbers(found.x)


def node_free(technologies: Sequence[str], *, reductions: str = "") -> list[Free]:
    """What is fitted to rows of one node, shared by `technologies`.

    Args:
        technologies: One NVLink, or several that share everything.
        reductions: `own` where rows tell the switches' reductions from rings; `as ring` ties
            their start to the ring's; empty leaves them to what is fixed.
    """

    def places(*fields: str) -> tuple[tuple[str, str], ...]:
        return tuple((t, field) for t in technologies for field in fields)

    tied = ("reduction_start_s",) if reductions == "as ring" else ()
    free = [Free("start_s", places("start_s", *tied))]
    names = ("efficiency", "latency_s", "fast_start_s", "fast_rate", "own_share")
    free += [Free(name, places(name)) for name in names]
    if reductions == "own":
        free += [Free(name, places(name)) for name in REDUCTION]
    return free


def network_free(technologies: Sequence[str]) -> list[Free]:
    """What is fitted to two-node rows: starts of each generation, one share of the rate."""
    free = [
        Free(f"{field} between nodes", ((technology, field),))
        for technology in technologies
        for field in ("start_s", "fast_start_s")
    ]
    names = ("efficiency", "fast_rate")
    return free + [Free(name, tuple((t, name) for t in technologies)) for name in names]


def select(
    observations: Sequence[Observation], technologies: Sequence[str], prefix: str = ""
) -> list[Observation]:
    """Rows that may be fitted, of some technologies and, if given, one source."""
    return [
        o
        for o in observations
        if o.fits and o.technology in technologies and prefix in ("", o.prefix)
    ]


def size_folds(observations: Sequence[Observation]) -> IntArray:
    """(n,) fold of each row: rows of one message size are left out together."""
    distinct = sorted({o.message_bytes for o in observations})
    number = {size: i % min(FOLDS, len(distinct)) for i, size in enumerate(distinct)}
    return np.array([number[o.message_bytes] for o in observations], dtype=np.int64)


def fit_node(observations: Sequence[Observation], technology: str, fixed: Numbers) -> Numbers:
    """Numbers of one NVLink from rows of one node; `fixed` gives reductions it does not fit."""
    reductions = "own" if technology == "nvlink4" else ""
    return solve(observations, node_free([technology], reductions=reductions), fixed)


def fit_family(observations: Sequence[Observation], technologies: Sequence[str]) -> Numbers:
    """One set of numbers for several NVLinks, each with the same weight."""
    chosen = select(observations, technologies)
    count = {t: sum(o.technology == t for o in chosen) for t in technologies}
    weights = np.array([1.0 / np.sqrt(count[o.technology]) for o in chosen])
    weights *= np.sqrt(len(chosen) / np.sum(weights**2))
    if "nvlink4" in technologies:
        return solve(chosen, node_free(technologies, reductions="own"), {}, weights)
    fixed = {t: {"reduction_rate": 1.0} for t in technologies}
    return solve(chosen, node_free(technologies, reductions="as ring"), fixed, weights)


def fit_networks(
    observations: Sequence[Observation], nodes: Numbers, technologies: Sequence[str] = EFAS
) -> Numbers:
    """Numbers of generations of EFA, those of the nodes given."""
    fixed = {**nodes, **{technology: {"latency_s": HOP_S} for technology in technologies}}
    return solve(observations, network_free(technologies), fixed)


@lru_cache(maxsize=1)
def fit_all() -> Mapping[str, Fit]:
    """Every technology, and the family `nvlink`, with ranges.

    A range spans the central 80 % of a delete-one-fold jackknife over message sizes (Efron and
    Tibshirani 1993, chapter 11) and the fits without one of the sources, which measure small
    messages differently. The family's spans those of its technologies. A number that was given
    has its value as its range here.
    """
    observations, _ = rows.read()
    fits: dict[str, Fit] = {}
    for technology in ("nvlink4", "nvlink3", "nvlink5"):
        chosen = select(observations, [technology])
        fits[technology] = _with_range(chosen, technology, _reductions(fits, technology))
    nodes = {t: fits[t].numbers[t] for t in NVLINKS}
    chosen = select(observations, EFAS)
    main = fit_networks(chosen, nodes)
    refits = [fit_networks(rest, nodes) for rest, _ in _folds(chosen)]
    # Two set-ups of the second generation, of one page, differ by up to 2.2 in the middle.
    parts = [[o for o in chosen if o.source != source] for source in {o.source for o in chosen}]
    others = [fit_networks(p, nodes) for p in parts if {o.technology for o in p} == set(EFAS)]
    for technology in EFAS:
        low, high = _jackknife(main[technology], [refit[technology] for refit in refits])
        low, high = _stretched(low, high, [other[technology] for other in others])
        count = sum(o.technology == technology for o in chosen)
        fits[technology] = Fit(main, {technology: low}, {technology: high}, count)
    family = fit_family(observations, NVLINKS)["nvlink4"]
    fits["nvlink"] = Fit(
        {"nvlink": family},
        {"nvlink": _spanned(fits, family, low=True)},
        {"nvlink": _spanned(fits, family, low=False)},
        sum(fits[t].rows for t in NVLINKS),
    )
    return fits


def _reductions(fits: Mapping[str, Fit], technology: str) -> Numbers:
    """What a technology without rows of its own on reductions takes from NVLink 4."""
    if technology != "nvlink5":
        return {}
    known = fits["nvlink4"].numbers["nvlink4"]
    return {technology: {field: known[field] for field in REDUCTION}}


def _with_range(chosen: Sequence[Observation], technology: str, fixed: Numbers) -> Fit:
    main = fit_node(chosen, technology, fixed)[technology]
    refits = [fit_node(rest, technology, fixed)[technology] for rest, _ in _folds(chosen)]
    low, high = _jackknife(main, refits)
    parts = [[o for o in chosen if o.prefix != prefix] for prefix in {o.prefix for o in chosen}]
    others = [fit_node(part, technology, fixed)[technology] for part in parts if part]
    low, high = _stretched(low, high, others)
    return Fit({technology: main}, {technology: low}, {technology: high}, len(chosen))


def _stretched(
    low: Mapping[str, float], high: Mapping[str, float], others: Sequence[Mapping[str, float]]
) -> tuple[dict[str, float], dict[str, float]]:
    """A range stretched to hold other fits too."""
    return (
        {name: min([value, *(other[name] for other in others)]) for name, value in low.items()},
        {name: max([value, *(other[name] for other in others)]) for name, value in high.items()},
    )


def _jackknife(
    main: Mapping[str, float], refits: Sequence[Mapping[str, float]]
) -> tuple[dict[str, float], dict[str, float]]:
    low, high = {}, {}
    for name, value in main.items():
        spread = np.array([refit[name] for refit in refits])
        deviation = np.sqrt((len(spread) - 1) * np.mean((spread - spread.mean()) ** 2))
        low[name] = max(0.0, value - _NORMAL_80 * float(deviation))
        high[name] = value + _NORMAL_80 * float(deviation)
        if not name.endswith("_s"):
            high[name] = min(1.0, high[name])
    return low, high


def _spanned(
    fits: Mapping[str, Fit], family: Mapping[str, float], *, low: bool
) -> dict[str, float]:
    pick = min if low else max
    out = {}
    for name, value in family.items():
        ends = [fits[t].low if low else fits[t].high for t in NVLINKS]
        known = [end[t][name] for end, t in zip(ends, NVLINKS, strict=True) if name in end[t]]
        out[name] = pick([value, *known])
    return out


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Seconds of a row by fits that did not see it; NaN where there is no such fit.

    Args:
        own_size_s: Fitted on the row's chip and source, its message size left out.
        size_s: Fitted on all sources of its technology, its message size left out.
        source_s: Fitted on the other sources of its technology.
        chip_s: Fitted on the other NVLinks, or for EFA the other generation's numbers.
    """

    own_size_s: float = float("nan")
    size_s: float = float("nan")
    source_s: float = float("nan")
    chip_s: float = float("nan")


def held_out() -> dict[str, HeldOut]:
    """Row to its left-out predictions, for every row that was fitted."""
    observations, _ = rows.read()
    found: dict[str, dict[str, float]] = defaultdict(dict)
    for kind, out, numbers in chain(
        _nodes_left_out(observations), _networks_left_out(observations)
    ):
        for o, time_s in zip(out, predict(grouped(out), [numbers])[0], strict=True):
            found[o.id][kind] = float(time_s)
    return {row: HeldOut(**kinds) for row, kinds in found.items()}


_LeftOut = Iterator[tuple[str, Sequence[Observation], Numbers]]


def _nodes_left_out(observations: Sequence[Observation]) -> _LeftOut:
    """(kind of prediction, rows left out, numbers fitted without them) for rows of one node."""
    for technology in NVLINKS:
        fixed = _reductions(fit_all(), technology)
        chosen = select(observations, [technology])
        for rest, out in _folds(chosen):
            yield "size_s", out, fit_node(rest, technology, fixed)
        for prefix in sorted({o.prefix for o in chosen}):
            own = [o for o in chosen if o.prefix == prefix]
            for rest, out in _folds(own):
                yield "own_size_s", out, fit_node(rest, technology, fixed)
            rest = [o for o in chosen if o.prefix != prefix]
            if rest:
                yield "source_s", own, fit_node(rest, technology, fixed)
        others = [t for t in NVLINKS if t != technology]
        yield "chip_s", chosen, {technology: fit_family(observations, others)[others[0]]}


def _networks_left_out(observations: Sequence[Observation]) -> _LeftOut:
    """The same for rows of two nodes, which have one source."""
    nodes = {t: fit_all()[t].numbers[t] for t in NVLINKS}
    chosen = select(observations, EFAS)
    for rest, out in _folds(chosen):
        numbers = fit_networks(rest, nodes)
        yield "size_s", out, numbers
        yield "own_size_s", out, numbers
    for technology in EFAS:
        rest = [o for o in chosen if o.technology != technology]
        (other,) = (t for t in EFAS if t != technology)
        numbers = fit_networks(rest, nodes, [other])
        out = [o for o in chosen if o.technology == technology]
        yield "chip_s", out, {**nodes, technology: numbers[other]}


def _folds(
    chosen: Sequence[Observation],
) -> Iterator[tuple[list[Observation], list[Observation]]]:
    """(rows kept, rows left out) for each fold of message sizes."""
    fold = size_folds(chosen)
    for k in range(int(fold.max()) + 1):
        yield (
            [o for o, f in zip(chosen, fold, strict=True) if f != k],
            [o for o, f in zip(chosen, fold, strict=True) if f == k],
        )
