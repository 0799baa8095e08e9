"""Where a prediction leaves what measured rows cover.

`ranges.yaml` holds what the rows that set parameters reach: matmuls of each silicon, sequences and
chips of published runs on each silicon, degrees of all runs. A run beyond is priced by the same
formulas, and marked. Kernels that take little of the step are not worth a mark.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

from dse.items import OperatorItem
from dse.plan import Plan
from dse.stacks.levels import silicon_of
from dse.workload import Workload
from hwmodels.kernels.parameters import ASSUMED
from hwmodels.network import Cluster

DEGREES = ("tp", "pp", "dp", "cp", "ep")
WORTH = 0.05
"""Share of the step below which kernels outside the measured sizes are not marked."""


@functools.cache
def ranges() -> Mapping[str, Any]:
    """What measured rows cover, see `dse/validate/ranges.py`."""
    text = resources.files("dse").joinpath("ranges.yaml").read_text(encoding="utf-8")
    found: Mapping[str, Any] = json.loads(text)  # the file is YAML in its JSON form
    return found


def extrapolated(
    workload: Workload,
    cluster: Cluster,
    plan: Plan,
    operators: Sequence[OperatorItem],
    step_time_s: float,
) -> tuple[str, ...]:
    """What of a run lies outside what rows cover, in words; empty if nothing does.

    Args:
        workload: Model, sequence length, precision.
        cluster: The machine, as large as the job.
        plan: The resolved plan.
        operators: Kernels of the critical stage with their seconds in a step.
        step_time_s: The step.
    """
    return (
        *_generation(cluster),
        *_sequence(workload, cluster),
        *_sizes(cluster, plan),
        *_precision(workload, cluster),
        *_matmuls(cluster, operators, step_time_s),
    )


def _generation(cluster: Cluster) -> list[str]:
    silicon = silicon_of(cluster.chip)
    if silicon in ranges()["runs"]:
        return []
    return [f"chip generation {silicon} (no published training run told a level on it)"]


def _sequence(workload: Workload, cluster: Cluster) -> list[str]:
    known = ranges()
    silicon, seq = silicon_of(cluster.chip), workload.seq_length
    longest = known["runs"].get(silicon, known)["longest_seq"]
    where = f" on {silicon}" if silicon in known["runs"] else ""
    if seq > longest:
        return [f"sequences of {seq} tokens (published runs{where} reach {longest})"]
    if seq < known["shortest_seq"]:
        return [f"sequences of {seq} tokens (published runs start at {known['shortest_seq']})"]
    return []


def _sizes(cluster: Cluster, plan: Plan) -> list[str]:
    known = ranges()
    silicon = silicon_of(cluster.chip)
    found = []
    most = known["runs"].get(silicon, {}).get("most_chips")
    if most is not None and cluster.num_chips > most:
        found.append(f"{cluster.num_chips} chips (published runs on {silicon} reach {most})")
    for degree in DEGREES:
        size = int(getattr(plan, degree) or 1)
        if size > known["degrees"][degree]:
            found.append(f"{degree} {size} (published runs reach {known['degrees'][degree]})")
    return found


def _precision(workload: Workload, cluster: Cluster) -> list[str]:
    name = f"matmul_efficiency.{workload.precision}"
    if cluster.chip.kernel_status.get(name, ASSUMED) != ASSUMED:
        return []
    silicon = silicon_of(cluster.chip)
    return [f"matmuls in {workload.precision} (none was measured on {silicon} or its family)"]


def _matmuls(cluster: Cluster, operators: Sequence[OperatorItem], step_time_s: float) -> list[str]:
    silicon = silicon_of(cluster.chip)
    known = ranges()["matmul"].get(silicon)
    if known is None:
        return [f"matmuls of every size (none was measured on {silicon})"]
    outside, flop, side = 0.0, [], []
    for item in operators:
        if item.kind != "matmul":
            continue
        sides = [item.shape[name] for name in "mnk"]
        work = 2.0 * sides[0] * sides[1] * sides[2] * item.shape.get("batch", 1.0)
        if not known["least_flop"] <= work <= known["most_flop"]:
            flop.append(work)
        elif min(sides) < known["least_side"]:
            side.append(min(sides))
        else:
            continue
        outside += item.time_s
    if outside < WORTH * step_time_s:
        return []
    share = f"{100 * outside / step_time_s:.0f} % of the step"
    told = []
    if flop:
        told.append(
            f"of {min(flop):.2g} to {max(flop):.2g} FLOP (measured {known['least_flop']:.2g} to "
            f"{known['most_flop']:.2g} on {silicon})"
        )
    if side:
        told.append(
            f"with a side of {min(side):.0f} (measured from {known['least_side']} on {silicon})"
        )
    return [f"matmuls {' and '.join(told)}, {share}"]
