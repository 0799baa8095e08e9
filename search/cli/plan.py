"""`dse plan`: the best plan of a model on a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from search.cli.parse import Output, Switch, Whole

if TYPE_CHECKING:
    from dse.report import Report
    from search.plans import PlanSearchResult


def plan(
    model: str,
    cluster: str,
    /,
    *,
    global_batch_size: Whole | None = None,
    chips: Whole | None = None,
    space: str = "full",
    fix: Annotated[list[str] | None, Parameter(negative=())] = None,
    allow: Annotated[list[str] | None, Parameter(negative=())] = None,
    max_tp_span: str | None = None,
    headroom: str | None = None,
    top: Whole = 10,
    all_: Annotated[str | None, Parameter(name="--all")] = None,
    megatron: Switch = False,
    stack: str | None = None,
    seq_length: Whole | None = None,
    precision: str = "bf16",
    output: Output = Output(),  # noqa: B008 - frozen, cyclopts' way to share flags
) -> int:
    """Find the fastest plan of MODEL on CLUSTER, and prove that the space holds no faster one.

    Parameters
    ----------
    model
        A bundled name (`dse show model`), or the path of a Hugging Face config.json.
    cluster
        A node or cluster of the catalogue (`dse show node`), or the path of a YAML file.
    global_batch_size
        Sequences a step; needed.
    chips
        Devices of the job; the cluster's own size if left out.
    space
        Which plans to search: compact or full.
    fix
        Plan axis with its one value, as tp=8; repeatable.
    allow
        Plan axis with the values it may take, as zero=0,1; repeatable.
    max_tp_span
        "node" keeps every tensor-parallel group within one host.
    headroom
        Memory to leave free on each device beyond the reserve, as 6GiB.
    top
        How many of the fastest plans to list.
    all_
        Write every plan of the space to this CSV file, priced wherever it fits.
    megatron
        Print the Megatron-LM arguments of the best plan.
    stack
        The software stack: a bundled name or a YAML file.
    seq_length
        Tokens a sequence; the smaller of the model's maximum and 4096 if left out.
    precision
        bf16, fp16, fp32, tf32, fp8 or fp4.
    """
    from dse.workload import load_model
    from hwmodels.errors import ConfigError
    from hwmodels.units import parse
    from search.cli.output import deliver, refuse_existing
    from search.narrowing import from_flags
    from search.plans import search_plans

    if global_batch_size is None:
        # not left to the parser, which would name it before a misspelling of it
        raise ConfigError("--global-batch-size needs a value", field="--global-batch-size")
    refuse_existing(all_, flag="--all", force=output.force)
    refuse_existing(output.output, flag="--output", force=output.force)
    if all_ is not None and all_ == output.output:
        raise ConfigError("--all and --output name the same file", field="--all", value=all_)
    fixed, allowed = from_flags(fix or [], allow or [])
    config = load_model(model)
    result = search_plans(
        config,
        cluster,
        global_batch_size=global_batch_size,
        chips=chips,
        space=space,
        seq_length=seq_length,
        precision=precision,
        stack=stack,
        top=top,
        fix=fixed,
        allow=allowed,
        max_tp_span=max_tp_span,
        headroom_bytes=parse(headroom, "bytes", field="--headroom")
        if headroom is not None
        else 0.0,
        all_csv=all_,
        overwrite=output.force,
    )
    data = result.model_dump()
    data["inputs"] = {"model": model, "cluster": cluster, "stack": stack}
    for entry in data["best"]:
        entry["inputs"] = data["inputs"]
    text = _headline(result) if output.quiet else _told(result)
    if megatron:
        text += "\n\n" + _megatron(data, result, config)
    deliver(data, output, text)
    return 0


def _megatron(data: dict[str, Any], result: PlanSearchResult, config: Any) -> str:
    """Megatron-LM's arguments of the fastest plan that has any, said in the JSON as well."""
    from dse.megatron import argument_line
    from hwmodels.errors import UnsupportedError

    skipped = []
    for place, report in enumerate(result.best):
        try:
            line = argument_line(
                report.plan, config, seq_length=report.seq_length, precision=report.precision
            )
        except UnsupportedError as problem:
            skipped.append(f"plan {place + 1}: {problem}")
            continue
        data["megatron"] = line
        data["megatron_plan"] = place + 1
        data["warnings"] = [*data["warnings"], *skipped]
        return line
    data["megatron"] = None
    data["warnings"] = [*data["warnings"], *skipped]
    return "Megatron-LM has no flags for any of the listed plans."


def _headline(result: PlanSearchResult) -> str:
    from search.cli.summary import headline

    return headline(result.best[0])


def _told(result: PlanSearchResult) -> str:
    from search.cli.output import columns, gib, seconds
    from search.cli.summary import answer, plan_text

    best = result.best[0]
    counts = ", ".join(f"{count:,} by {reason}" for reason, count in result.discarded.items())
    rows = [_row(place, report, result) for place, report in enumerate(result.best)]
    table = columns(("", "step", "MFU %", "peak GiB", "plan"), rows)
    front = columns(
        ("peak GiB", "step", "plan"),
        [
            (gib(point.peak_memory_bytes), seconds(point.step_time_s), plan_text(point.plan))
            for point in _thinned(result.front)
        ],
        title="Step time against memory",
    )
    tied = f"~ not told apart from the best (within {100 * result.tie_fraction:.0f} %)"
    return "\n".join(
        [
            answer(best),
            f"Exact over space {result.space}: {result.enumerated:,} plans, {result.evaluated:,} "
            f"priced, dropped {counts}; {result.elapsed_s:.2f} s",
            "",
            table,
            *([tied] if result.ties else []),
            "",
            front,
        ]
    )


def _row(place: int, report: Report, result: PlanSearchResult) -> tuple[object, ...]:
    from search.cli.output import gib, seconds
    from search.cli.summary import plan_text

    mark = "~" if 0 < place <= len(result.ties) else ""
    return (
        f"{place + 1}{mark}",
        seconds(report.step_time_s),
        f"{100 * report.mfu:.1f}",
        gib(report.peak_memory_bytes),
        plan_text(report.plan),
    )


def _thinned(front: tuple[Any, ...], most: int = 8) -> list[Any]:
    """A front's ends and some points between, for a table that fits a screen."""
    if len(front) <= most:
        return list(front)
    places = sorted({round(i * (len(front) - 1) / (most - 1)) for i in range(most)})
    return [front[place] for place in places]
