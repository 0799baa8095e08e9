"""Judges designs: constraints, the best plan of every model, objectives. One pure function.

Designs that break a constraint that needs no plan (physics, area, power, money) are not given a
plan; a design without a plan for some model breaks the constraint `memory`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from dse.plan import AXES, RECOMPUTE
from dse.workload.counts import Recompute, hardware_flop
from hwmodels.accelerator.priors import Constants
from hwmodels.accelerator.silicon import Interval
from hwmodels.table import FloatArray, IntArray
from search.designs import Candidates, study_constants
from search.inner import BestPlans, PlanSolver
from search.objectives import Bills, metrics
from search.study_space import StudySpace, TrainingJob

TOLERANCE = 1e-9
"""Relative; a design that meets a cap exactly is not refused for rounding."""


@dataclass(frozen=True)
class Verdicts:
    """H designs judged.

    Args:
        index: (H,) numbers of the designs.
        excess: Constraint to (H,) relative excess; positive where it is broken.
        step_time_s: (H, W) at the best plan of each model; infinite without one.
        hfu: (H, W).
        metrics: Objective to (H, W).
        plans: (H, W, axes) integers of the best plan of each model; -1 without one.
        area_mm2: (H, 3) low, median, high; likewise TDP and price.
        tdp_w: (H, 3).
        price_usd: (H, 3).
        amounts: What caps limit, (H,) each.
        pairs: (design, plan) pairs priced.
    """

    index: IntArray
    excess: dict[str, FloatArray]
    step_time_s: FloatArray
    hfu: FloatArray
    metrics: dict[str, FloatArray]
    plans: IntArray
    area_mm2: FloatArray
    tdp_w: FloatArray
    price_usd: FloatArray
    amounts: dict[str, FloatArray]
    pairs: int

    def __len__(self) -> int:
        return len(self.index)

    @property
    def feasible(self) -> NDArray[np.bool_]:
        """(H,) whether no constraint is broken."""
        stacked = np.stack([*self.excess.values()])
        feasible: NDArray[np.bool_] = np.all(stacked <= 0.0, axis=0)
        return feasible

    def record(self, row: int) -> dict[str, Any]:
        """One design as plain JSON, from which `of_records` makes the same columns."""
        return {
            "design": int(self.index[row]),
            "excess": {name: float(column[row]) for name, column in self.excess.items()},
            "step_time_s": [finite_or_none(value) for value in self.step_time_s[row]],
            "hfu": self.hfu[row].tolist(),
            "metrics": {
                name: [finite_or_none(value) for value in column[row]]
                for name, column in self.metrics.items()
            },
            "plans": self.plans[row].tolist(),
            "area_mm2": [finite_or_none(value) for value in self.area_mm2[row]],
            "tdp_w": self.tdp_w[row].tolist(),
            "price_usd": self.price_usd[row].tolist(),
            "amounts": {
                name: finite_or_none(column[row]) for name, column in self.amounts.items()
            },
        }

    @classmethod
    def of_records(cls, records: Sequence[Mapping[str, Any]]) -> Verdicts:
        """Columns of designs that were kept as JSON."""
        first = records[0]

        def column(*path: str, missing: float = np.inf) -> FloatArray:
            values = [_at(record, path) for record in records]
            return np.array(_filled(values, missing), dtype=float)

        return cls(
            index=np.array([record["design"] for record in records], dtype=np.int64),
            excess={name: column("excess", name) for name in first["excess"]},
            step_time_s=column("step_time_s"),
            hfu=column("hfu"),
            metrics={name: column("metrics", name) for name in first["metrics"]},
            plans=np.array([record["plans"] for record in records], dtype=np.int64),
            area_mm2=column("area_mm2", missing=np.nan),
            tdp_w=column("tdp_w"),
            price_usd=column("price_usd"),
            amounts={name: column("amounts", name, missing=np.nan) for name in first["amounts"]},
            pairs=0,
        )

    def take(self, rows: NDArray[np.intp]) -> Verdicts:
        """Some of the designs."""
        taken: dict[str, Any] = {}
        for entry in fields(self):
            value = getattr(self, entry.name)
            if isinstance(value, dict):
                taken[entry.name] = {name: column[rows] for name, column in value.items()}
            else:
                taken[entry.name] = value if entry.name == "pairs" else value[rows]
        return Verdicts(**taken)

    @classmethod
    def joined(cls, parts: Sequence[Verdicts]) -> Verdicts:
        """All designs of several verdicts, in order."""
        merged: dict[str, Any] = {}
        for entry in fields(cls):
            pieces = [getattr(part, entry.name) for part in parts]
            if entry.name == "pairs":
                merged[entry.name] = sum(pieces)
            elif isinstance(pieces[0], dict):
                merged[entry.name] = {
                    name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]
                }
            else:
                merged[entry.name] = np.concatenate(pieces)
        return cls(**merged)


def finite_or_none(value: float) -> float | None:
    """JSON has no infinity and no NaN."""
    return float(value) if np.isfinite(value) else None


def _at(record: Mapping[str, Any], path: Sequence[str]) -> Any:
    found: Any = record
    for key in path:
        found = found[key]
    return found


def _filled(values: Any, missing: float) -> Any:
    if isinstance(values, list):
        return [_filled(value, missing) for value in values]
    return missing if values is None else values


class Judge:
    """Judges designs of one study.

    Args:
        space: The study's space.
        constants: The draws that all designs share.
    """

    def __init__(
        self,
        space: StudySpace,
        constants: Constants | None = None,
        *,
        seed: int = 0,
    ) -> None:
        self.space = space
        self.constants = constants or study_constants(seed)
        self._solvers: dict[tuple[str, int, int, str], PlanSolver] = {}

    def candidates(self, index: IntArray) -> Candidates:
        """The designs of some numbers."""
        return Candidates(self.space, index, self.constants)

    def __call__(self, index: IntArray) -> Verdicts:
        """Judge designs by number."""
        designs = self.candidates(np.asarray(index, dtype=np.int64))
        excess = relative_excess(designs)
        allowed = np.all(np.stack([*excess.values()]) <= 0.0, axis=0)
        count, models = len(designs), len(self.space.jobs)
        time_s = np.full((count, models), np.inf)
        hfu = np.zeros((count, models))
        short = np.zeros(count)
        plans = np.full((count, models, len(AXES)), -1, dtype=np.int64)
        pairs = 0
        for rows in designs.groups(allowed):
            hardware = designs.hardware(rows)
            usable = hardware.chip["memory_bytes"]
            peak = hardware.chip[f"peak_flop_per_s.{self.space.jobs[0].workload.precision}"]
            for place, job in enumerate(self.space.jobs):
                solver = self.solver(place, hardware.num_chips, designs.silicon(rows[0]))
                best = solver.solve(hardware)
                pairs += best.priced
                time_s[rows, place] = best.step_time_s
                short[rows] = np.maximum(short[rows], best.short_bytes / usable)
                hfu[rows, place] = _hfu(job, best, peak * hardware.num_chips)
                plans[rows, place] = best.plans
        fits = np.isfinite(time_s).all(axis=1) | ~allowed
        excess["memory"] = np.where(fits, 0.0, np.maximum(short, TOLERANCE))
        tokens = np.array([job.tokens_per_step for job in self.space.jobs], dtype=float)
        tokens_per_s = tokens / time_s
        deadline = self.space.deadline
        if deadline is not None:
            with np.errstate(divide="ignore"):
                needed_s = deadline.tokens / tokens_per_s.min(axis=1)
            late = np.where(np.isfinite(needed_s), needed_s / deadline.time_s - 1.0, 0.0)
            excess["deadline"] = _rounded(late)
        costs = designs.costs
        bills = Bills(
            chips=designs.num_chips.astype(float),
            tdp_w=costs.tdp_w.median,
            network_w=costs.network_w.median,
            chip_usd=costs.price_usd.median,
            network_usd=costs.network_usd.median,
            switched_share=costs.switched_share,
        )
        return Verdicts(
            index=designs.index,
            excess=excess,
            step_time_s=time_s,
            hfu=hfu,
            metrics=metrics(self.space, tokens_per_s, hfu, bills),
            plans=plans,
            area_mm2=_three(costs.area_mm2),
            tdp_w=_three(costs.tdp_w),
            price_usd=_three(costs.price_usd),
            amounts={name: amount for name, (amount, _) in designs.capped().items()},
            pairs=pairs,
        )

    def solver(
        self, place: int, num_chips: int, silicon: str, plan_space: str = "compact"
    ) -> PlanSolver:
        """Of one model, by its place in the study, on a number of chips of a silicon."""
        key = (plan_space, place, num_chips, silicon)
        if key not in self._solvers:
            job = self.space.jobs[place]
            self._solvers[key] = PlanSolver(
                job.workload,
                self.space.stack_on(silicon),
                num_chips,
                job.global_batch_size,
                space=plan_space,
                narrowing=self.space.narrowing,
            )
        return self._solvers[key]


def relative_excess(designs: Candidates) -> dict[str, FloatArray]:
    """Constraints that need no plan to (H,) excess over the limit, in units of the limit.

    Physics, then the study's caps. A limit of zero counts in its own unit.
    """
    found: dict[str, FloatArray] = {}
    for name, (needed, allowed, _) in designs.excess().items():
        over = (needed - allowed) / np.where(allowed > 0, allowed, 1.0)
        # What is not known cannot be shown to keep a cap.
        found[name] = _rounded(np.where(np.isnan(over), 1.0, over))
    return found


def _rounded(over: FloatArray) -> FloatArray:
    return np.where(over <= TOLERANCE, np.minimum(over, 0.0), over)


def _hfu(job: TrainingJob, best: BestPlans, peak_flop_per_s: FloatArray) -> FloatArray:
    """(H,) share of the peak that executed operations use, recomputation included."""
    executed = np.array([executed_flop(job, word) for word in RECOMPUTE], dtype=float)
    flop = executed[best.plans[:, AXES.index("recompute")].clip(min=0)]
    used: FloatArray = flop / (best.step_time_s * peak_flop_per_s)
    return used


def executed_flop(job: TrainingJob, recompute: str) -> int:
    """Operations of a step, recomputation included, of which a causal mask skips half."""
    return hardware_flop(
        job.workload.config,
        job.workload.seq_length,
        sequences=job.global_batch_size,
        recompute=cast(Recompute, recompute),
        convention="causal",
    )


def _three(interval: Interval) -> FloatArray:
    return np.stack([interval.low, interval.median, interval.high], axis=1)
