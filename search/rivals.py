"""Designs of a front beside real machines, each at its own best plans, and who is better how
surely.

Draws are joint. The silicon constants are those of the study, model error included. Step times
are log-normal: the stack's level and what rests on assumed kernel parameters are shared by all
machines of a silicon (the template counts as one), what remains between plans is each machine's
own. A real chip's published area and TDP are not drawn; its price to make is, by the same silicon
model.

Shapes: `S` draws, `W` models.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from dse.evaluation import ASSUMED_SD, TRANSFERRED_SD, evaluate
from dse.plan import Plan
from dse.report import Report
from dse.stacks.levels import silicon_of
from hwmodels.accelerator.network_cost import Topology, network_cost
from hwmodels.catalog import load_cluster
from hwmodels.collectives.links import AXIS_KINDS
from hwmodels.errors import ConfigError
from hwmodels.network import Cluster
from hwmodels.table import FloatArray, HardwareTable
from search.catalogued import catalogued
from search.front import Front, full_plans
from search.judge import Judge, executed_flop, finite_or_none
from search.objectives import Bills, aggregated, best_known, front_rows, metrics, scores
from search.result import Entry, ModelResult, Range
from search.sensitivity import elasticities

DRAWS_A_CONSTANT = 16
"""Draws of the step times for each joint draw of the silicon constants."""
SHARES = (0.1, 0.5, 0.9)


@dataclass(frozen=True)
class Machine:
    """A design or a real machine, priced.

    Args:
        name: For people.
        design: Number in the space; None for a real machine.
        parameters: As text.
        cluster: The machine.
        silicon: What the stack's level knows its chip by.
        reports: A report a model.
        compact_s: (W,) step times at the best compact plans; None for a real machine.
        draws: `area_mm2, tdp_w, price_usd, network_usd, network_w` to (S,) of one chip.
        switched_share: Share of the TDP that the matrix units switch.
        price_basis: What the price is.
        slack: Constraint to the share of its limit that is left.
    """

    name: str
    design: int | None
    parameters: Mapping[str, str]
    cluster: Cluster
    silicon: str
    reports: tuple[Report, ...]
    compact_s: FloatArray | None
    draws: Mapping[str, FloatArray]
    switched_share: float
    price_basis: str
    slack: Mapping[str, float]


@dataclass(frozen=True)
class Compared:
    """Front and real machines as entries of a result, and what would speed up the first."""

    front: tuple[Entry, ...]
    rivals: tuple[Entry, ...]
    elasticities: Mapping[str, Mapping[str, float]]
    warnings: tuple[str, ...]


def rivals_of(judge: Judge, front: Front, *, seed: int) -> Compared:
    """Set a front beside the machines that the study names.

    A machine that cannot be had in that number of chips, or that no plan fits, is left out with a
    warning.
    """
    space = judge.space
    machines = [_design(judge, front, row) for row in range(len(front.designs))]
    rivals: list[Machine] = []
    warnings: list[str] = []
    chips = int(front.designs.num_chips[0])
    for name in space.compare:
        try:
            rivals.append(_rival(judge, name, chips))
        except ConfigError as problem:
            warnings.append(f"{name} is left out: {problem}")
    feasible = front.verdicts.feasible
    best = {
        name: best_known(name, front.verdicts.metrics[name][feasible]) for name in space.objectives
    }
    noise = _Noise(judge, seed)
    # What real machines reach, drawn once, so that each comparison is draw against draw.
    against = [(rival, _drawn(judge, rival, noise, best)) for rival in rivals]
    entries: dict[str, Entry] = {}
    for machine in machines:
        drawn = _drawn(judge, machine, noise, best)
        better = {
            rival.name: {
                name: float(np.mean(scores(name, drawn[name]) > scores(name, theirs[name])))
                for name in space.objectives
            }
            for rival, theirs in against
        }
        entries[machine.name] = _entry(judge, machine, drawn, best, better)
    ranked = _ranked(judge, [*entries.values()])
    winner = next(machine for machine in machines if machine.name == ranked[0].name)
    return Compared(
        front=tuple(ranked),
        rivals=tuple(_entry(judge, rival, drawn, best, {}) for rival, drawn in against),
        elasticities={
            job.model: _elasticities(judge, winner, place) for place, job in enumerate(space.jobs)
        },
        warnings=tuple(warnings),
    )


def _elasticities(judge: Judge, machine: Machine, place: int) -> dict[str, float]:
    """Of one model on a machine, levels by their names."""
    slopes = elasticities(
        judge.space.jobs[place].workload,
        judge.space.stack_on(machine.silicon),
        HardwareTable.of([machine.cluster]),
        machine.reports[place].plan,
    )
    named: dict[str, float] = {}
    for name, slope in slopes.items():
        head, _, rest = name.partition(".")
        if head == "level":
            level, _, rest = rest.partition(".")
            name = f"{machine.cluster.levels[int(level)].name}.{rest}"
        named[name] = slope
    return named


def _ranked(judge: Judge, entries: list[Entry]) -> list[Entry]:
    """Those that none beats, best of the first objective first: the full plan space may have
    changed the order."""
    scored = [
        [float(scores(name, np.array(entry.values[name]))) for name in judge.space.objectives]
        for entry in entries
    ]
    return [entries[row] for row in front_rows(np.array(scored))]


def _design(judge: Judge, front: Front, row: int) -> Machine:
    designs, space = front.designs, judge.space
    number = int(designs.index[row])
    excess = {name: float(column[front.rows[row]]) for name, column in _excess(front).items()}
    basis = "made, by the silicon model"
    if space.from_catalogue:
        basis = catalogued(designs.chip(row), judge.constants).price_basis
    return Machine(
        name=f"design-{number}",
        design=number,
        parameters=space.written(number),
        cluster=designs.cluster(row),
        silicon=designs.silicon(row),
        reports=front.reports[row],
        compact_s=front.compact_s[row],
        draws={name: column[:, row] for name, column in designs.costs.draws.items()},
        switched_share=float(designs.costs.switched_share[row]),
        price_basis=basis,
        slack={name: -amount for name, amount in excess.items() if name in _told(judge)},
    )


def _excess(front: Front) -> Mapping[str, FloatArray]:
    return front.verdicts.excess


def _told(judge: Judge) -> tuple[str, ...]:
    """Constraints whose slack means something to people."""
    physics = ("reticle", "beachfront", "memory beachfront", "power density", "clock")
    return (*physics, *judge.space.caps, "deadline")


def _rival(judge: Judge, name: str, chips: int) -> Machine:
    space = judge.space
    cluster = load_cluster(name, num_chips=chips)
    costs = catalogued(cluster.chip, judge.constants)
    hardware = HardwareTable.of([cluster])
    silicon = silicon_of(cluster.chip)
    reports = []
    for place, job in enumerate(space.jobs):
        if f"peak_flop_per_s.{job.workload.precision}" not in hardware.chip:
            raise ConfigError(f"{cluster.chip.name} has no {job.workload.precision} units")
        plan: Plan | None = full_plans(judge, place, hardware, silicon)[0]
        if plan is None:
            raise ConfigError(f"no plan of {job.model} fits {chips} of it")
        reports.append(
            evaluate(
                job.workload.config,
                cluster,
                plan,
                stack=space.stack_on(silicon),
                seq_length=job.workload.seq_length,
                precision=job.workload.precision,
                must_fit=False,
            )
        )
    usd, watts = _network(judge, cluster)
    draws = {
        "area_mm2": costs.area_draws_mm2,
        "tdp_w": costs.tdp_draws_w,
        "price_usd": costs.price_draws_usd,
        "network_usd": usd,
        "network_w": watts,
    }
    return Machine(
        name=cluster.name.lower(),
        design=None,
        parameters={"chip": cluster.chip.name, "network": _levels(cluster)},
        cluster=cluster,
        silicon=silicon,
        reports=tuple(reports),
        compact_s=None,
        draws=draws,
        switched_share=costs.switched_share,
        price_basis=costs.price_basis,
        slack={},
    )


def _levels(cluster: Cluster) -> str:
    return ", ".join(
        f"{level.size} by {level.name} at {level.bytes_per_s_per_chip_per_dir / 1e9:.4g} GB/s"
        for level in cluster.levels
        if level.size > 1
    )


def _network(judge: Judge, cluster: Cluster) -> tuple[FloatArray, FloatArray]:
    """(S,) price and power of a real machine's network, a chip, by the same model."""
    inner, outer = cluster.levels[:-1] or cluster.levels, cluster.levels[-1]
    on_axes = inner[0].kind in AXIS_KINDS
    kind: Topology = "torus" if on_axes else "switch"
    links = 2.0 * len(inner) if on_axes else 1.0
    cost = network_cost(
        judge.constants,
        num_chips=cluster.num_chips,
        domain=int(np.prod([level.size for level in inner])),
        scaleup_bytes_per_s_per_dir=links * inner[0].bytes_per_s_per_chip_per_dir,
        nic_bytes_per_s_per_dir=outer.bytes_per_s_per_chip_per_dir,
        radix=judge.space.radix,
        rails=judge.space.rails,
        oversubscription=outer.oversubscription,
        scaleup=kind,
    )
    return cost.price_usd_per_chip[:, 0], cost.power_w_per_chip[:, 0]


class _Noise:
    """Standard normal draws that all machines of a study share, or own by name."""

    def __init__(self, judge: Judge, seed: int) -> None:
        self.size = len(judge.constants) * DRAWS_A_CONSTANT
        self._seed = seed

    def _normal(self, name: str) -> FloatArray:
        words = np.frombuffer(name.encode(), dtype=np.uint8).tolist()
        return np.random.default_rng((self._seed, *words)).standard_normal(self.size)

    def log_error(self, machine: Machine, report: Report, judge: Judge) -> FloatArray:
        """(S,) error of the logarithm of a step time."""
        stack, share = judge.space.stack_on(machine.silicon), report.provenance_share
        family = machine.silicon
        return (
            stack.level_sd * self._normal(f"{family} level")
            + stack.structure_sd * self._normal(f"{machine.name} {report.model}")
            + ASSUMED_SD * share.assumed * self._normal(f"{family} assumed")
            + TRANSFERRED_SD * share.transferred * self._normal(f"{family} transferred")
        )


def _times(machine: Machine) -> FloatArray:
    return np.array([report.step_time_s for report in machine.reports])


def _valued(
    judge: Judge,
    machine: Machine,
    time_s: FloatArray,
    costs: Mapping[str, FloatArray],
    best: Mapping[str, FloatArray],
) -> dict[str, FloatArray]:
    """Objective to (S,) values of one machine at (S, W) step times."""
    space = judge.space
    tokens = np.array([job.tokens_per_step for job in space.jobs], dtype=float)
    flop = np.array(
        [
            executed_flop(job, report.plan.recompute)
            for job, report in zip(space.jobs, machine.reports, strict=True)
        ],
        dtype=float,
    )
    precision = space.jobs[0].workload.precision
    peak = machine.cluster.chip.peak_flop_per_s[precision] * machine.cluster.num_chips
    bills = Bills(
        chips=np.array(float(machine.cluster.num_chips)),
        tdp_w=costs["tdp_w"],
        network_w=costs["network_w"],
        chip_usd=costs["price_usd"],
        network_usd=costs["network_usd"],
        switched_share=np.array(machine.switched_share),
    )
    found = metrics(space, tokens / time_s, flop / (time_s * peak), bills)
    return {name: aggregated(space, name, found[name], best[name]) for name in space.objectives}


def _drawn(
    judge: Judge, machine: Machine, noise: _Noise, best: Mapping[str, FloatArray]
) -> dict[str, FloatArray]:
    errors = [noise.log_error(machine, report, judge) for report in machine.reports]
    time_s = _times(machine) * np.exp(np.stack(errors, axis=1))
    costs = {name: np.tile(column, DRAWS_A_CONSTANT) for name, column in machine.draws.items()}
    return _valued(judge, machine, time_s, costs, best)


def _entry(
    judge: Judge,
    machine: Machine,
    drawn: Mapping[str, FloatArray],
    best: Mapping[str, FloatArray],
    better: Mapping[str, Mapping[str, float]],
) -> Entry:
    space = judge.space
    ranges = {name: _range(column) for name, column in machine.draws.items()}
    middle = {name: np.array([ranges[name].median or 0.0]) for name in ranges}
    values = _valued(judge, machine, _times(machine)[None, :], middle, best)
    chips = machine.cluster.num_chips
    compact = machine.compact_s
    return Entry(
        name=machine.name,
        design=machine.design,
        parameters=machine.parameters,
        values={name: float(value[0]) for name, value in values.items()},
        values_80={
            name: (float(np.quantile(column, 0.1)), float(np.quantile(column, 0.9)))
            for name, column in drawn.items()
        },
        chips=chips,
        area_mm2=ranges["area_mm2"],
        tdp_w=ranges["tdp_w"],
        price_usd=ranges["price_usd"],
        price_basis=machine.price_basis,
        capital_usd=chips
        * float(space.economics.markup * middle["price_usd"][0] + middle["network_usd"][0]),
        power_w=chips * float(middle["tdp_w"][0] + middle["network_w"][0]),
        slack=machine.slack,
        models=tuple(
            ModelResult(
                model=job.model,
                step_time_s=report.step_time_s,
                interval_80_s=report.interval_80_s,
                compact_step_time_s=None if compact is None else float(compact[place]),
                tokens_per_s=report.tokens_per_s,
                mfu=report.mfu,
                bottleneck=report.bottleneck,
                plan=report.plan,
            )
            for place, (job, report) in enumerate(zip(space.jobs, machine.reports, strict=True))
        ),
        better_than=better,
    )


def _range(draws: FloatArray) -> Range:
    """Quantiles that are draws themselves, as the study's medians are."""
    ordered, last = np.sort(draws), len(draws) - 1
    low, median, high = (finite_or_none(ordered[round(share * last)]) for share in SHARES)
    return Range(low=low, median=median, high=high)
