"""How sure a step time is: reasons that it may be off, and joint draws of all of them.

A prediction is off for reasons that are independent of one another, each a log-normal factor: the
level of the stack on its silicon, what is left between plans of one stack, kinds of run that no
row settles. `reasons` lists those of a run; an interval adds their variances up.

For two runs the reasons are not independent: the level of a stack is common to both its plans, and
so are the kernels of a chip and the links of a network. A reason therefore carries a label, equal
labels share draws, and the share of draws in which one run is faster answers which one is.
Kernel and link parameters are drawn within the ranges that their calibration states; all draws of
a machine are rows of one hardware table, priced in one call.

Draws are stratified (one in each of `DRAWS` equal slices of the normal, in an order of the
label's own), so that a few hundred suffice.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import NormalDist

import numpy as np

from dse.plan import Plan, PlanTable
from dse.precision import LOW_PRECISIONS
from dse.stacks import Stack
from dse.stacks.levels import POOLED, UNFITTED, Level, shipped_levels, silicon_of
from dse.step import StepModel
from dse.workload import Workload
from hwmodels.network import Cluster
from hwmodels.sourced import Sourced
from hwmodels.table import LEVEL_COLUMNS, FloatArray, HardwareTable

DRAWS = 512
NORMAL_80 = 1.2815515655446004
HOST_SD = 0.156
"""20 % at 80 %: where launches bound the step, the host's law is known to a factor of 1.5."""
SUSTAINED = "kernel.matmul_sustained"
LOW_PRECISION_SD = 0.06
"""Quantising passes, whose fusion recipes do not say."""
NEW_SILICON_SD = 0.10
"""A silicon without a training run, towards slow alone: both newer chips were predicted too fast
from their kernels (H100 by 12 to 26 %, GB200 by 24 %)."""
EXPERT_SD = 0.20
"""Exchange between routed experts and grouped matmuls: no measured kernel or collective covers
them."""


@dataclass(frozen=True, slots=True)
class Run:
    """One plan on one machine.

    Args:
        workload: Model, sequence length, precision.
        cluster: The machine, as large as the job.
        stack: The software, with its factors.
        plan: The plan, every field filled.
    """

    workload: Workload
    cluster: Cluster
    stack: Stack
    plan: Plan


@dataclass(frozen=True, slots=True)
class Reason:
    """One reason why the logarithm of a step time may be off.

    Args:
        label: Runs that share it are off together.
        sd: Standard deviation.
        slow_only: The step can be slower for it, not faster.
    """

    label: str
    sd: float
    slow_only: bool = False


def reasons(
    run: Run, parts_s: Mapping[str, float], step_time_s: float, *, level: Level | None = None
) -> tuple[Reason, ...]:
    """Why the step time of a run may be off, kernels and links apart.

    Args:
        run: The run.
        parts_s: Parts of its ledger by name.
        step_time_s: Their sum.
        level: The fitted level that its stack was priced at; that of the package if None.
    """
    silicon, stack, plan = silicon_of(run.cluster.chip), run.stack, run.plan
    level = level or level_of(run)
    # What a plan leaves over is its own; the model's and machine's names keep runs apart.
    own = f"{run.workload.config.name} {run.cluster.name} {plan.model_dump()}"
    found = [
        Reason(f"level {stack.name} {silicon}", stack.level_sd),
        Reason(f"structure {own}", stack.structure_sd),
    ]
    device_s = sum(parts_s[name] for name in ("compute", "tp", "cp", "ep"))
    if host_s(run) > 0.5 * device_s:
        found.append(Reason(f"host {silicon}", HOST_SD))
    if run.workload.precision in LOW_PRECISIONS:
        found.append(Reason(f"low precision {silicon}", LOW_PRECISION_SD))
    if run.workload.config.is_moe:
        found.append(Reason("experts", EXPERT_SD))
    if not is_told(level):
        found.append(Reason(f"new silicon {silicon}", NEW_SILICON_SD, slow_only=True))
    if plan.zero == 3 and run.cluster.num_chips > run.cluster.chips_per_node:
        exposed = math.log1p(parts_s["dp"] / step_time_s)
        network = run.cluster.levels[-1].technology
        found.append(Reason(f"gathers {network}", exposed, slow_only=True))
    return tuple(found)


def level_of(run: Run) -> Level:
    """The shipped level of a run's stack on its silicon; one without rows if none was fitted."""
    levels = shipped_levels() if run.stack.calibration == "shipped" else UNFITTED
    return levels.of(run.stack.name, silicon_of(run.cluster.chip))


def is_told(level: Level) -> bool:
    """Whether published runs on the silicon told a level."""
    return level.silicon != POOLED and level.rows > 0


def host_s(run: Run) -> float:
    """Seconds that the host needs for the launches of a step."""
    stack, plan = run.stack, run.plan
    full = plan.recompute == "full"
    launches = stack.launches_forward * (2.0 if full else 1.0) + stack.launches_backward
    micro_batches = plan.global_batch_size // (plan.micro_batch_size * (plan.dp or 1))
    layers = -(-run.workload.config.layers // plan.pp)
    return launches * stack.launch_s * micro_batches * layers


def spread(found: Sequence[Reason]) -> tuple[float, float]:
    """Log standard deviations towards fast and towards slow."""
    both = math.fsum(reason.sd**2 for reason in found if not reason.slow_only)
    slow = math.fsum(reason.sd**2 for reason in found if reason.slow_only)
    return math.sqrt(both), math.sqrt(both + slow)


# Draws ----------------------------------------------------------------------------------------


@lru_cache(maxsize=8)
def _slices(draws: int) -> FloatArray:
    normal = NormalDist()
    return np.array([normal.inv_cdf((place + 0.5) / draws) for place in range(draws)])


def normals(label: str, draws: int = DRAWS, seed: int = 0) -> FloatArray:
    """(draws,) standard normal draws of a label: the same for the same label and seed."""
    rng = np.random.default_rng([seed, zlib.crc32(label.encode())])
    found: FloatArray = _slices(draws)[rng.permutation(draws)]
    return found


def drawn(value: float, low: float, high: float, z: FloatArray) -> FloatArray:
    """Values of a parameter at normal draws.

    Args:
        value: Its estimate, at z = 0.
        low: Lower end of its central 80 %.
        high: Upper end of it.
        z: (draws,) standard normal.

    Returns:
        (draws,) values, log-normal on either side where all three are positive, else normal and
        never below zero. What is at most 1 at its high end, a share, is never drawn above 1.
    """
    if min(value, low) > 0.0:
        up, down = math.log(max(high / value, 1.0)), math.log(max(value / low, 1.0))
        found: FloatArray = value * np.exp(np.where(z > 0, up, down) / NORMAL_80 * z)
    else:
        up, down = max(high - value, 0.0), max(value - low, 0.0)
        found = np.maximum(value + np.where(z > 0, up, down) / NORMAL_80 * z, 0.0)
    return np.minimum(found, 1.0) if max(value, high) <= 1.0 else found


def machine_draws(
    cluster: Cluster, draws: int = DRAWS, seed: int = 0, *, told: bool = False
) -> HardwareTable:
    """A table of `draws` rows of one machine, kernel and link parameters drawn in their ranges.

    Args:
        cluster: The machine.
        draws: Rows.
        seed: Of the draws.
        told: Whether training runs told a level on this silicon: then that level holds the clock
            of a long run, and `matmul_sustained` is not drawn once more.
    """
    one = HardwareTable.of([cluster])
    silicon = silicon_of(cluster.chip)
    chip = {name: np.repeat(values, draws) for name, values in one.chip.items()}
    for name, fact in cluster.chip.facts.items():
        if told and name.startswith(SUSTAINED):
            continue
        if name in chip and _has_range(fact):
            z = normals(f"{silicon} {name}", draws, seed)
            chip[name] = drawn(float(one.chip[name][0]), *_range(fact, one.chip[name][0]), z)
    level = {name: np.repeat(values, draws, axis=0) for name, values in one.level.items()}
    for place, link in enumerate(cluster.levels):
        for column, field in LEVEL_COLUMNS.items():
            found = cluster.facts.get(f"levels.{link.name}.{field}")
            if found is not None and _has_range(found):
                z = normals(f"{link.technology or cluster.name} {field}", draws, seed)
                value = float(one.level[column][0, place])
                level[column][:, place] = drawn(value, *_range(found, value), z)
    return replace(
        one,
        names=tuple(f"{cluster.name} #{draw}" for draw in range(draws)),
        chip=chip,
        level=level,
        level_size=np.repeat(one.level_size, draws, axis=0),
        chips_per_node=np.repeat(one.chips_per_node, draws),
    )


def _has_range(fact: Sourced) -> bool:
    return fact.low is not None and fact.high is not None and fact.value != 0.0


def _range(fact: Sourced, value: float) -> tuple[float, float]:
    """A fact's range around the value that is used, which a caller may have changed."""
    low, high = fact.low or 0.0, fact.high or 0.0
    return value * low / fact.value, value * high / fact.value


def step_time_draws(run: Run, draws: int = DRAWS, seed: int = 0) -> FloatArray:
    """(draws,) seconds of a step, every reason and parameter drawn by its label."""
    plans = PlanTable.from_plans([run.plan])
    machines = machine_draws(run.cluster, draws, seed, told=is_told(level_of(run)))
    point = StepModel(run.workload, HardwareTable.of([run.cluster]), run.stack).evaluate(plans)
    parts_s = {name: float(values[0, 0]) for name, values in point.parts.items()}
    found = reasons(run, parts_s, float(point.step_time_s[0, 0]))
    off = np.zeros(draws)
    for reason in found:
        z = normals(reason.label, draws, seed)
        off += reason.sd * (np.maximum(z, 0.0) if reason.slow_only else z)
    columns = StepModel(run.workload, machines, run.stack).evaluate(plans)
    drawn_s: FloatArray = columns.step_time_s[:, 0] * np.exp(off)
    return drawn_s


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two runs under common draws.

    Args:
        a_is_faster: Share of draws in which A takes less time; equal times count half.
        ratio_80: Central 80 % of B's time over A's.
        a_80_s: Central 80 % of A's time.
        b_80_s: The same of B's.
        draws: How many.
    """

    a_is_faster: float
    ratio_80: tuple[float, float]
    a_80_s: tuple[float, float]
    b_80_s: tuple[float, float]
    draws: int


def compare(a: Run, b: Run, *, draws: int = DRAWS, seed: int = 0) -> Comparison:
    """Which of two runs is faster, what they have in common drawn once."""
    a_s, b_s = step_time_draws(a, draws, seed), step_time_draws(b, draws, seed)
    wins = np.where(a_s == b_s, 0.5, a_s < b_s)
    return Comparison(
        a_is_faster=float(wins.mean()),
        ratio_80=_central_80(b_s / a_s),
        a_80_s=_central_80(a_s),
        b_80_s=_central_80(b_s),
        draws=draws,
    )


def _central_80(values: FloatArray) -> tuple[float, float]:
    low, high = np.quantile(values, (0.1, 0.9))
    return float(low), float(high)
