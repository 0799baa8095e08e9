"""What a study found, as the JSON object that scripts rely on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr

from dse.plan import Plan
from hwmodels.table import FloatArray
from search.judge import Verdicts, finite_or_none
from search.plans import plan_fields
from search.study_space import StudySpace

SCHEMA = "ridge-dse/search/1"


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Objective(_Frozen):
    """What is asked for."""

    name: str
    unit: str
    direction: str


class Range(_Frozen):
    """Median and the central 80 % of it, if it is uncertain."""

    low: float | None
    median: float | None
    high: float | None


class HistoryPoint(_Frozen):
    """The best of the first objective after so many designs."""

    designs: int
    value: float


class ModelResult(_Frozen):
    """One model at a design's best plan.

    Attributes:
        model: Its name.
        step_time_s: At the best plan of the full plan space, where that was searched.
        interval_80_s: Central 80 % of it.
        compact_step_time_s: At the best plan of the compact plan space.
        tokens_per_s: Of the whole cluster.
        mfu: Share of the peak, model operations.
        bottleneck: The largest entry of the ledger.
        plan: The plan.
    """

    model: str
    step_time_s: float
    interval_80_s: tuple[float, float]
    compact_step_time_s: float | None
    tokens_per_s: float
    mfu: float
    bottleneck: str
    plan: Plan

    def model_dump(self, **options: Any) -> dict[str, Any]:
        """The JSON object; the plan with its number of micro-batches."""
        return {**super().model_dump(**options), "plan": plan_fields(self.plan)}


class Entry(_Frozen):
    """A design, or a real machine, with what it costs and how it trains.

    Attributes:
        name: `design-N`, or the catalogue's name.
        design: Its number in the space; None for a real machine.
        parameters: Every axis with a choice, as text; chips and network of a real machine.
        values: Objective to value, aggregated over models.
        values_80: Objective to its central 80 %, constants and model error included.
        chips: Of the cluster.
        area_mm2: Compute dies of a package.
        tdp_w: Of a chip.
        price_usd: Of a chip.
        price_basis: What that price is.
        capital_usd: Of the cluster with its network, at the median.
        power_w: Of the cluster with its network, at peak, at the median.
        slack: Constraint to the share of its limit that is left.
        models: Each model at its best plan.
        better_than: Real machine to objective to the probability of being better than it.
    """

    name: str
    design: int | None
    parameters: Mapping[str, str]
    values: Mapping[str, float]
    values_80: Mapping[str, tuple[float, float]]
    chips: int
    area_mm2: Range
    tdp_w: Range
    price_usd: Range
    price_basis: str
    capital_usd: float
    power_w: float
    slack: Mapping[str, float]
    models: tuple[ModelResult, ...]
    better_than: Mapping[str, Mapping[str, float]] = Field(default_factory=dict)

    def model_dump(self, **options: Any) -> dict[str, Any]:
        """The JSON object."""
        dumped = super().model_dump(**options)
        dumped["models"] = [model.model_dump(**options) for model in self.models]
        return dumped


class SearchResult(_Frozen):
    """The outcome of a study.

    Attributes:
        designs_evaluated: Trials, among them designs that the sampler proposed again.
        unique: Designs looked at.
        feasible: Those that meet every constraint.
        infeasible: Constraint to how many designs broke it first.
        sampler: Who proposed designs.
        why_sampler: The rule that chose it.
        elapsed_s: Wall seconds of the search; `evaluator_s` of them judged `judged` designs.
        best: The front's first: the best of the first objective.
        front: Designs that none beats in one objective without losing in another.
        compared: Real machines at their own best plans.
        elasticities: Of the best design, model to resource to d ln(step time) / d ln(resource).
        history: Improvements of the first objective.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    schema_: str = Field(default=SCHEMA, alias="schema")
    version: str
    calibration: str
    inputs_sha256: str
    seed: int
    warnings: tuple[str, ...]
    study: str
    storage: str | None
    space_size: int
    aggregate: str | None
    objectives: tuple[Objective, ...]
    plan_space: str
    designs_evaluated: int
    unique: int
    feasible: int
    infeasible: Mapping[str, int]
    sampler: str
    why_sampler: str
    elapsed_s: float
    evaluator_s: float
    judged: int
    pairs_priced: int
    interrupted: bool
    best: Entry
    front: tuple[Entry, ...]
    compared: tuple[Entry, ...]
    elasticities: Mapping[str, Mapping[str, float]]
    history: tuple[HistoryPoint, ...]

    _space: StudySpace | None = PrivateAttr(default=None)
    _verdicts: Verdicts | None = PrivateAttr(default=None)
    _values: FloatArray | None = PrivateAttr(default=None)

    def with_designs(
        self, space: StudySpace, verdicts: Verdicts, values: FloatArray
    ) -> SearchResult:
        """The same result, which then can list every design looked at."""
        self._space, self._verdicts, self._values = space, verdicts, values
        return self

    def model_dump(self, **options: Any) -> dict[str, Any]:
        """The JSON object."""
        dumped = super().model_dump(**{"by_alias": True, "mode": "json", **options})
        dumped["best"] = self.best.model_dump(mode="json")
        for name in ("front", "compared"):
            entries: tuple[Entry, ...] = getattr(self, name)
            dumped[name] = [entry.model_dump(mode="json") for entry in entries]
        return dumped

    def designs(self) -> list[dict[str, Any]]:
        """Every design looked at, in the order met, one flat row each.

        Columns: `design`, every axis (SI, or words), `feasible`, the first constraint broken,
        objectives, each model's step time and plan at its compact best, area, TDP and price with
        their central 80 %, and what caps limit. A value that does not exist is None.
        """
        space, verdicts, values = self._space, self._verdicts, self._values
        if space is None or verdicts is None or values is None:
            return []
        return [_row(space, verdicts, values, row) for row in range(len(verdicts))]


def _row(space: StudySpace, verdicts: Verdicts, values: FloatArray, row: int) -> dict[str, Any]:
    feasible = bool(verdicts.feasible[row])
    broken = next((name for name, column in verdicts.excess.items() if column[row] > 0), None)
    found: dict[str, Any] = {"design": int(verdicts.index[row])}
    found |= space.described(int(verdicts.index[row]))
    found |= {"feasible": feasible, "broken": broken}
    for place, name in enumerate(space.objectives):
        found[name] = finite_or_none(values[row, place]) if feasible else None
    for place, job in enumerate(space.jobs):
        suffix = f"[{job.model}]" if len(space.jobs) > 1 else ""
        found[f"step_time_s{suffix}"] = finite_or_none(verdicts.step_time_s[row, place])
        found[f"plan{suffix}"] = plan_words(verdicts, row, place)
    for name in ("area_mm2", "tdp_w", "price_usd"):
        low, median, high = getattr(verdicts, name)[row]
        found |= {
            name: finite_or_none(median),
            f"{name}_low": finite_or_none(low),
            f"{name}_high": finite_or_none(high),
        }
    found["capital_usd"] = finite_or_none(verdicts.amounts["capital"][row])
    found["power_w"] = finite_or_none(verdicts.amounts["power"][row])
    return found


def plan_words(verdicts: Verdicts, row: int, place: int) -> str | None:
    """A design's compact plan for one model as `tp=8 pp=4 ...`; None without one."""
    from dse.plan import AXES
    from search.inner import plan_of

    integers = verdicts.plans[row, place]
    if not np.isfinite(verdicts.step_time_s[row, place]):
        return None
    plan = plan_of(integers)
    shown = [axis for axis in AXES if axis not in ("global_batch_size", "optimizer")]
    return " ".join(f"{axis}={getattr(plan, axis)}" for axis in shown[:12])
