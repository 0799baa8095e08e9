"""`dse evaluate`: price one plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cyclopts import Parameter

from search.cli.parse import Output, Whole


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class PlanFlags:
    """The plan; what is left out takes the default that `dse.Plan` gives it.

    Attributes:
        tp: Tensor-parallel degree.
        pp: Pipeline stages.
        dp: Data-parallel degree; chips / (tp pp cp) if left out.
        cp: Context-parallel degree.
        ep: Expert-parallel degree.
        etp: Tensor-parallel degree of experts.
        vpp: Model chunks a device.
        micro_batch_size: Sequences a micro-batch.
        global_batch_size: Sequences a step.
        sequence_parallel: Divide norms and residuals over tp; on if tp > 1.
        zero: ZeRO stage 0 to 3.
        recompute: none, selective or full.
        schedule: 1f1b, interleaved or gpipe.
        mesh_order: Rank order, fastest first, as tp-cp-dp-pp.
        optimizer: adam, adam-bf16, adam-8bit or sgd-momentum.
        grad_dtype: fp32, bf16 or fp16.
        master_dtype: fp32 or none.
        first_stage_layers: Layers of the first stage, where the split is uneven.
        last_stage_layers: Layers of the last stage, where the split is uneven.
    """

    tp: Whole | None = None
    pp: Whole | None = None
    dp: Whole | None = None
    cp: Whole | None = None
    ep: Whole | None = None
    etp: Whole | None = None
    vpp: Whole | None = None
    micro_batch_size: Whole | None = None
    global_batch_size: Whole | None = None
    sequence_parallel: bool | None = None
    zero: Whole | None = None
    recompute: str | None = None
    schedule: str | None = None
    mesh_order: str | None = None
    optimizer: str | None = None
    grad_dtype: str | None = None
    master_dtype: str | None = None
    first_stage_layers: Whole | None = None
    last_stage_layers: Whole | None = None

    def given(self) -> dict[str, object]:
        """The fields that were typed."""
        values = {name: getattr(self, name) for name in self.__slots__}
        return {name: value for name, value in values.items() if value is not None}


def evaluate(
    model: str,
    cluster: str | None = None,
    /,
    *,
    chips: Whole | None = None,
    plan: PlanFlags = PlanFlags(),
    megatron_args: str | None = None,
    stack: str | None = None,
    seq_length: Whole | None = None,
    precision: str | None = None,
    flop_convention: str = "full",
    output: Output = Output(),  # noqa: B008 - frozen, cyclopts' way to share flags
) -> int:
    """Price one plan of MODEL on CLUSTER: step time, what bounds it, memory by stage.

    Parameters
    ----------
    model
        A bundled name (`dse show model`), or the path of a Hugging Face config.json. With
        --megatron-args it may be left out: the arguments then describe the model.
    cluster
        A node or cluster of the catalogue (`dse show node`), or the path of a YAML file.
    chips
        Devices of the job; the cluster's own size if left out.
    megatron_args
        A file with a Megatron-LM argument line; its fields join those given here.
    stack
        The software stack: a bundled name or a YAML file.
    seq_length
        Tokens a sequence; the smaller of the model's maximum and 4096 if left out.
    precision
        bf16 (the default), fp16, fp32 or fp8.
    flop_convention
        full counts the whole square of attention as model FLOPs, causal half of it.
    """
    from dse import Plan, load_model
    from dse import evaluate as price
    from hwmodels import load_cluster
    from hwmodels.errors import ConfigError
    from search.cli.output import deliver, refuse_existing
    from search.cli.summary import answer, headline, ledger

    refuse_existing(output.output, flag="--output", force=output.force)
    fields = plan.given()
    if cluster is None and megatron_args is None:
        raise ConfigError("CLUSTER needs a value", field="CLUSTER")
    named = model if cluster is not None else None
    machine = load_cluster(cluster if cluster is not None else model, num_chips=chips)
    config = load_model(named) if named is not None else None
    notes: tuple[str, ...] = ()
    if megatron_args is not None:
        from dse.megatron import read_file

        run = read_file(megatron_args, config)
        fields = _joined(run.plan, fields)
        if "global_batch_size" not in fields:
            fields["global_batch_size"] = _megatron_batch(fields, machine.num_chips)
        precision = _agreed("precision", run.precision, precision)
        seq_length = _agreed("seq_length", run.seq_length, seq_length)
        config, notes = run.model, run.warnings
    if config is None:
        raise ConfigError("MODEL needs a value", field="MODEL")
    report = price(
        config,
        machine,
        Plan(**fields),
        stack=stack,
        seq_length=seq_length,
        precision=precision or "bf16",
        flop_convention=flop_convention,  # type: ignore[arg-type]  # checked there, with an error that lists them
    )
    data: dict[str, Any] = report.model_dump(mode="json")
    data["warnings"] = [*data["warnings"], *notes]
    data["inputs"] = {
        "model": named,
        "cluster": cluster if cluster is not None else model,
        "stack": stack,
        "megatron_args": megatron_args if named is None else None,
    }
    text = headline(report) if output.quiet else answer(report) + "\n\n" + ledger(report)
    deliver(data, output, text)
    return 0


def _joined(read: dict[str, object], typed: dict[str, object]) -> dict[str, object]:
    """Fields of the file and of the flags; where both say something they must say the same."""
    for name, value in typed.items():
        _agreed(name, read.get(name), value)
    return {**read, **typed}


def _agreed(name: str, read: Any, typed: Any) -> Any:
    from hwmodels.errors import ConfigError

    if read is not None and typed is not None and read != typed:
        raise ConfigError(
            f"the Megatron-LM arguments say {name} = {read}, the command line {typed}",
            field=name,
            value=typed,
            allowed=read,
        )
    return typed if read is None else read


def _megatron_batch(fields: dict[str, object], num_chips: int) -> int:
    """Megatron's default batch: one micro-batch a data-parallel rank."""
    from dse import Plan

    plan = Plan(**{**fields, "global_batch_size": 1}).resolved(num_chips)
    return plan.micro_batch_size * (plan.dp or 1)
