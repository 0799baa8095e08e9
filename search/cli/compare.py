"""`dse compare`: two saved results side by side, recomputed, term by term."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from search.cli.parse import Output

if TYPE_CHECKING:
    from dse.report import Report
    from dse.uncertainty import Run

SCHEMA = "ridge-dse/compare/1"
AGREES = 1e-9


def compare(a: str, b: str, /, *, output: Output = Output()) -> int:  # noqa: B008 - frozen
    """Set two saved results side by side, term by term.

    Both are recomputed by this version from the names and the plan that they hold, so that only
    what differs between them differs here. Of a `dse plan` result the best plan is taken.

    How likely A is the faster one comes from joint draws: what both have in common (a stack's
    level, a chip's kernels, a network's links) is drawn once for both.

    Parameters
    ----------
    a
        A file written by `dse evaluate --json` or `dse plan --json`.
    b
        Another.
    """
    from search.cli.output import deliver, refuse_existing

    refuse_existing(output.output, flag="--output", force=output.force)
    warnings: list[str] = []
    (first, one), (second, other) = _recomputed(a, warnings), _recomputed(b, warnings)
    data = _differences(a, first, b, second) | _odds(one, other)
    data["warnings"] = warnings
    deliver(data, output, _told(data, first, second))
    return 0


def _recomputed(path: str, warnings: list[str]) -> tuple[Report, Run]:
    from dse import Plan, evaluate, load_model, make_workload
    from dse.megatron import read_file
    from dse.stacks import calibrated_stack
    from dse.uncertainty import Run
    from hwmodels import load_cluster
    from hwmodels.errors import ConfigError
    from search.cli.output import read_json

    saved = read_json(path)
    if "best" in saved:
        best = saved["best"]
        if not (isinstance(best, list) and best and isinstance(best[0], dict)):
            raise ConfigError("best holds no plan", file=path, field="best")
        saved = best[0]
    inputs = saved.get("inputs", {})
    if not isinstance(inputs, dict):
        raise ConfigError("inputs is not an object", file=path, field="inputs")

    def text(key: str) -> str:
        value = inputs.get(key) or saved.get(key)
        if not isinstance(value, str):
            raise ConfigError(f"{key} is missing or not text", file=path, field=key)
        return value

    def count(key: str) -> int:
        value = saved.get(key)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= 1 << 30:
            raise ConfigError(f"{key} is missing or not a count", file=path, field=key)
        return value

    fields = saved.get("plan")
    if not isinstance(fields, dict):
        raise ConfigError("plan is missing or not an object", file=path, field="plan")
    try:
        arguments = inputs.get("megatron_args")
        config = (
            read_file(arguments).model if isinstance(arguments, str) else load_model(text("model"))
        )
        cluster = load_cluster(text("cluster"), num_chips=count("chips"))
        stack = calibrated_stack(text("stack"), cluster.chip)
        report = evaluate(
            config,
            cluster,
            Plan(**{key: value for key, value in fields.items() if key != "num_microbatches"}),
            stack=stack,
            seq_length=count("seq_length"),
            precision=text("precision"),
            flop_convention=text("flop_convention"),  # type: ignore[arg-type]  # checked there
            must_fit=False,
        )
    except ConfigError as problem:
        problem.file = problem.file or path
        raise
    if saved.get("inputs_sha256") != report.inputs_sha256:
        warnings.append(f"{path}: its inputs have changed since it was saved")
    before = saved.get("step_time_s")
    if not isinstance(before, int | float) or abs(before / report.step_time_s - 1) > AGREES:
        warnings.append(
            f"{path}: saved as {before} s by version {saved.get('version')}, "
            f"recomputed as {report.step_time_s} s"
        )
    workload = make_workload(config, report.seq_length, report.precision)
    return report, Run(workload, cluster, stack, report.plan)


def _odds(first: Run, second: Run) -> dict[str, Any]:
    """Which is faster, under draws that share what both have in common."""
    from dse.uncertainty import compare as compare_runs

    found = compare_runs(first, second)
    return {
        "a_is_faster_probability": found.a_is_faster,
        "step_time_ratio_80": list(found.ratio_80),
        "drawn_80_s": {"a": list(found.a_80_s), "b": list(found.b_80_s)},
        "draws": found.draws,
    }


def _differences(a: str, first: Report, b: str, second: Report) -> dict[str, Any]:
    from hwmodels.version import __version__

    pairs = zip(first.parts_s.in_order(), second.parts_s.in_order(), strict=True)
    terms = [
        {"term": name, "a_s": a_s, "b_s": b_s, "delta_s": b_s - a_s}
        for (name, a_s), (_, b_s) in pairs
    ]
    fullest = [
        max(report.memory_bytes, key=lambda stage: stage.total) for report in (first, second)
    ]
    memory = [
        {
            "category": name,
            "a_bytes": getattr(fullest[0], name),
            "b_bytes": getattr(fullest[1], name),
            "delta_bytes": getattr(fullest[1], name) - getattr(fullest[0], name),
        }
        for name in type(fullest[0]).model_fields
        if name not in ("reserve", "capacity")
    ]
    fields = type(first.plan).model_fields
    changed = {
        name: [getattr(first.plan, name), getattr(second.plan, name)]
        for name in fields
        if getattr(first.plan, name) != getattr(second.plan, name)
    }
    settings = ("model", "cluster", "chips", "seq_length", "precision", "stack")
    changed |= {
        name: [getattr(first, name), getattr(second, name)]
        for name in settings
        if getattr(first, name) != getattr(second, name)
    }
    return {
        "schema": SCHEMA,
        "version": __version__,
        "calibration": first.calibration,
        "inputs_sha256": [first.inputs_sha256, second.inputs_sha256],
        "seed": 0,
        "a": {"file": a, **_summary(first)},
        "b": {"file": b, **_summary(second)},
        "changed": changed,
        "step_time_ratio": second.step_time_s / first.step_time_s,
        "terms": terms,
        "memory": memory,
    }


def _summary(report: Report) -> dict[str, Any]:
    keys = ("model", "cluster", "chips", "stack", "step_time_s", "interval_80_s", "mfu", "fits")
    dumped = report.model_dump(mode="json")
    return {key: dumped[key] for key in (*keys, "bottleneck", "plan")}


def _told(data: dict[str, Any], first: Report, second: Report) -> str:
    from search.cli.output import columns, gib, seconds
    from search.cli.summary import headline

    delta_s = second.step_time_s - first.step_time_s
    ratio = data["step_time_ratio"]
    verdict = "B is faster" if delta_s < 0 else "A is faster" if delta_s > 0 else "equally fast"
    lines = [
        f"A  {first.model} on {first.chips} x {first.cluster}: {headline(first)}",
        f"B  {second.model} on {second.chips} x {second.cluster}: {headline(second)}",
        f"{verdict}: B takes {ratio:.4f} of A's time, bound by {second.bottleneck} "
        f"where A is bound by {first.bottleneck}",
        *_sure(data),
        "",
    ]
    if data["changed"]:
        rows = [(name, *map(str, values)) for name, values in data["changed"].items()]
        lines += [columns(("differs", "A", "B"), rows), ""]
    rows = [
        (term["term"], seconds(term["a_s"]), seconds(term["b_s"]), _signed(term["delta_s"]))
        for term in data["terms"]
        if term["a_s"] or term["b_s"]
    ]
    rows.append(
        ("step", seconds(first.step_time_s), seconds(second.step_time_s), _signed(delta_s))
    )
    lines += [columns(("term", "A", "B", "B - A"), rows), ""]
    cells = [
        (row["category"], gib(row["a_bytes"]), gib(row["b_bytes"]), gib(row["delta_bytes"]))
        for row in data["memory"]
        if row["a_bytes"] or row["b_bytes"]
    ]
    title = "Memory of the fullest stage, GiB a device"
    lines.append(columns(("category", "A", "B", "B - A"), cells, title=title))
    return "\n".join(lines)


def _sure(data: dict[str, Any]) -> list[str]:
    """Odds, and both widths: of each time alone, and of their ratio under common draws."""
    low, high = data["step_time_ratio_80"]
    alone = ", ".join(
        f"{name.upper()} {_percent(ends[0], data[name]['step_time_s'])} to "
        f"{_percent(ends[1], data[name]['step_time_s'])}"
        for name, ends in data["drawn_80_s"].items()
    )
    return [
        f"A is faster in {100 * data['a_is_faster_probability']:.0f} % of {data['draws']} draws "
        f"that share what both have in common; B / A is {low:.3f} to {high:.3f} (80 %)",
        f"each alone (80 %): {alone}",
    ]


def _percent(value_s: float, middle_s: float) -> str:
    return f"{100 * (value_s / middle_s - 1):+.0f} %"


def _signed(delta_s: float) -> str:
    from search.cli.output import seconds

    return ("-" if delta_s < 0 else "+") + seconds(abs(delta_s))
