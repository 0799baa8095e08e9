"""`dse sensitivity`: which resource makes a step faster, and by how much."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from search.cli.evaluate import PlanFlags
from search.cli.parse import Output, Switch, Whole

if TYPE_CHECKING:
    from dse.plan import Plan
    from dse.stacks import Stack
    from dse.workload import Workload
    from hwmodels.network import Cluster

SCHEMA = "ridge-dse/sensitivity/1"


def sensitivity(
    model: str,
    cluster: str,
    /,
    *,
    chips: Whole | None = None,
    plan: PlanFlags = PlanFlags(),  # noqa: B008 - frozen, as Output
    space: str = "compact",
    replan: Switch = False,
    stack: str | None = None,
    seq_length: Whole | None = None,
    precision: str = "bf16",
    output: Output = Output(),  # noqa: B008 - frozen, cyclopts' way to share flags
) -> int:
    """Elasticities of MODEL's step time on CLUSTER: per cent of time for one per cent of each
    resource.

    The plan is the one given, or with --global-batch-size alone the best of the space.

    Parameters
    ----------
    model
        A bundled name (`dse show model`), or the path of a Hugging Face config.json.
    cluster
        A node or cluster of the catalogue (`dse show node`), or the path of a YAML file.
    chips
        Devices of the job; the cluster's own size if left out.
    space
        Where the best plan is looked for: compact or full.
    replan
        Let every machine take its own best plan of the space.
    stack
        The software stack: a bundled name or a YAML file.
    seq_length
        Tokens a sequence; the smaller of the model's maximum and 4096 if left out.
    precision
        bf16, fp16, fp32 or fp8.
    """
    from dse.plan import Plan
    from dse.stacks import calibrated_stack
    from dse.workload import load_model, make_workload
    from hwmodels import HardwareTable, load_cluster
    from hwmodels.errors import ConfigError, InfeasibleError
    from search.cli.output import deliver, refuse_existing
    from search.inner import PlanSolver, plan_of
    from search.sensitivity import elasticities, elasticities_replanned

    refuse_existing(output.output, flag="--output", force=output.force)
    given = plan.given()
    batch = given.get("global_batch_size")
    if not isinstance(batch, int):
        raise ConfigError("--global-batch-size needs a value", field="--global-batch-size")
    fixed = set(given) - {"global_batch_size"}
    if fixed and replan:
        raise ConfigError(
            f"--replan chooses the plan, which --{min(fixed).replace('_', '-')} fixes",
            field="--replan",
        )
    machine = load_cluster(cluster, num_chips=chips)
    chosen = calibrated_stack(stack, machine.chip)
    workload = make_workload(load_model(model), seq_length, precision)
    table = HardwareTable.of([machine])
    solver = PlanSolver(workload, chosen, machine.num_chips, batch, space=space)
    if fixed:
        resolved = Plan(**given).resolved(machine.num_chips)
    else:
        best = solver.solve(table)
        if best.short_bytes[0] > 0:
            raise InfeasibleError(f"no plan of space {space} fits a {machine.chip.name}")
        resolved = plan_of(best.plans[0])
    data = _priced(workload, machine, chosen, resolved)
    slopes = (
        elasticities_replanned(solver, table)
        if replan
        else elasticities(workload, chosen, table, resolved)
    )
    data |= {
        "plan_of_each_row": "best" if replan else "fixed",
        "elasticities": slopes,
        "sum_of_rates": sum(v for k, v in slopes.items() if not _is_delay(k)),
    }
    deliver(data, output, _told(data, resolved))
    return 0


def _priced(workload: Workload, machine: Cluster, stack: Stack, plan: Plan) -> dict[str, Any]:
    from dse import evaluate
    from search.plans import plan_fields

    report = evaluate(
        workload.config,
        machine,
        plan,
        stack=stack,
        seq_length=workload.seq_length,
        precision=workload.precision,
        must_fit=False,
    )
    return {
        "schema": SCHEMA,
        "version": report.version,
        "calibration": report.calibration,
        "inputs_sha256": report.inputs_sha256,
        "seed": 0,
        "warnings": list(report.warnings),
        "model": workload.config.name,
        "cluster": machine.name,
        "chips": machine.num_chips,
        "stack": stack.name,
        "step_time_s": report.step_time_s,
        "bottleneck": report.bottleneck,
        "levels": {
            f"level.{place}": f"{level.name}, {level.size} by {level.kind}"
            for place, level in enumerate(machine.levels)
        },
        "plan": plan_fields(plan),
    }


def _is_delay(name: str) -> bool:
    return name.endswith(("latency_s", "start_s"))


def _told(data: dict[str, Any], plan: Plan) -> str:
    from search.cli.output import columns, seconds
    from search.cli.summary import plan_text

    ordered = sorted(data["elasticities"].items(), key=lambda item: -abs(item[1]))
    rows = [(_named(name, data["levels"]), f"{slope:+.4f}") for name, slope in ordered]
    which = "each machine's best plan" if data["plan_of_each_row"] == "best" else "this plan"
    return "\n".join(
        [
            f"{data['model']} on {data['chips']} x {data['cluster']}, {plan_text(plan)}: "
            f"{seconds(data['step_time_s'])} a step",
            f"Bound by {data['bottleneck']}; per cent of step time for one per cent more of each, "
            f"at {which}",
            "",
            columns(("resource", "elasticity"), rows),
        ]
    )


def _named(name: str, levels: dict[str, str]) -> str:
    if not name.startswith("level."):
        return name.replace("_", " ")
    stem, _, column = name.rpartition(".")
    return f"{column.replace('_', ' ')} of {levels[stem]}"
