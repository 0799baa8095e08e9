"""Write the Megatron-LM argument line of a plan."""

from __future__ import annotations

from dse.plan import Plan
from dse.workload.config import TransformerConfig
from hwmodels.errors import UnsupportedError

SHARDING = {2: "optim_grads", 3: "optim_grads_params"}
STATES = {"adam-bf16": "bf16", "adam-8bit": "fp8"}
MAPPINGS = {"tp-cp-dp-pp": None, "tp-cp-pp-dp": "--use-tp-pp-dp-mapping"}


def argument_line(
    plan: Plan, model: TransformerConfig, *, seq_length: int, precision: str = "bf16"
) -> str:
    """`arguments` as one line to paste."""
    return " ".join(arguments(plan, model, seq_length=seq_length, precision=precision))


def arguments(
    plan: Plan, model: TransformerConfig, *, seq_length: int, precision: str = "bf16"
) -> list[str]:
    """The flags that make Megatron-LM train with a plan; those of the model's shape are not
    among them.

    Args:
        plan: A resolved plan.
        model: The model, for its layers and experts.
        seq_length: Tokens a sequence.
        precision: `bf16`, `fp16`, `fp32` or `fp8`.

    Raises:
        UnsupportedError: Megatron-LM has no flags for the plan.
    """
    flags = [
        *("--tensor-model-parallel-size", str(plan.tp)),
        *("--pipeline-model-parallel-size", str(plan.pp)),
        *("--context-parallel-size", str(plan.cp)),
        *("--micro-batch-size", str(plan.micro_batch_size)),
        *("--global-batch-size", str(plan.global_batch_size)),
        *("--seq-length", str(seq_length)),
    ]
    if model.experts:
        flags += ["--expert-model-parallel-size", str(plan.ep)]
        flags += ["--expert-tensor-parallel-size", str(plan.etp)]
    if plan.vpp > 1:
        layers = model.layers // (plan.pp * plan.vpp)
        flags += ["--num-layers-per-virtual-pipeline-stage", str(layers)]
    if plan.schedule == "gpipe":
        raise _without_flags("schedule gpipe")
    if plan.first_stage_layers:
        flags += ["--decoder-first-pipeline-num-layers", str(plan.first_stage_layers)]
    if plan.last_stage_layers:
        flags += ["--decoder-last-pipeline-num-layers", str(plan.last_stage_layers)]
    if plan.sequence_parallel:
        flags.append("--sequence-parallel")
    if plan.recompute == "selective":
        flags += ["--recompute-granularity", "selective"]
    if plan.recompute == "full":
        flags += ["--recompute-granularity", "full", "--recompute-method", "uniform"]
        flags += ["--recompute-num-layers", "1"]
    return flags + _mapping(plan) + _sharding(plan) + _states(plan, precision)


def _mapping(plan: Plan) -> list[str]:
    """Megatron knows two rank orders; others serve where they coincide for lack of a dimension."""
    wanted = _present(plan, plan.mesh_order)
    for order, flag in MAPPINGS.items():
        if _present(plan, order) == wanted:
            return [flag] if flag else []
    raise _without_flags(f"mesh_order {plan.mesh_order}")


def _present(plan: Plan, order: str) -> list[str]:
    return [dim for dim in order.split("-") if getattr(plan, dim) != 1]


def _sharding(plan: Plan) -> list[str]:
    if plan.zero == 0:
        return []
    if plan.zero == 1:
        return ["--use-distributed-optimizer"]
    return [
        "--use-distributed-optimizer",
        "--use-megatron-fsdp",
        *("--data-parallel-sharding-strategy", SHARDING[plan.zero]),
    ]


def _states(plan: Plan, precision: str) -> list[str]:
    known = {
        "bf16": ["--bf16"],
        "fp16": ["--fp16"],
        "fp32": [],
        "fp8": ["--bf16", "--fp8-format", "hybrid"],
    }
    if precision not in known:
        raise _without_flags(f"precision {precision}")
    flags = known[precision]
    if plan.master_dtype == "none" and precision != "fp32":
        raise _without_flags("master_dtype none")
    if plan.grad_dtype == "bf16":
        flags = [*flags, "--grad-reduce-in-bf16"]
    elif plan.grad_dtype == "fp16" and precision != "fp16":
        raise _without_flags(f"grad_dtype fp16 in {precision}")
    elif plan.grad_dtype == "fp32" and precision == "fp16":
        flags = [*flags, "--accumulate-allreduce-grads-in-fp32"]
    if plan.optimizer == "sgd-momentum":
        return [*flags, "--optimizer", "sgd", "--sgd-momentum", "0.9"]
    if plan.optimizer in STATES:
        if plan.zero == 0:
            raise _without_flags(f"optimizer {plan.optimizer} with zero 0")
        dtype = STATES[plan.optimizer]
        flags = [*flags, "--use-precision-aware-optimizer"]
        flags += ["--exp-avg-dtype", dtype, "--exp-avg-sq-dtype", dtype]
    return flags


def _without_flags(what: str) -> UnsupportedError:
    field, _, value = what.partition(" ")
    return UnsupportedError(f"Megatron-LM has no flags for {what}", field=field, value=value)
