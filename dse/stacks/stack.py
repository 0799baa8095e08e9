"""A software stack: what a framework overlaps, fuses, saves and reserves.

These choices move a step's time by five to thirty per cent each and cannot be guessed from the
plan, so they are named fields with a source, in `dse/stacks/*.yaml`. A stack that no published
run was fitted on keeps the neutral factors 1.0; its interval is then as wide as the level of an
unseen stack varies.
"""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Literal, get_args

from pydantic import BaseModel, ConfigDict, Field

from hwmodels.errors import ConfigError
from hwmodels.sourced import Section, load_document

HERE = Path(__file__).parent
DEFAULT = "megatron-core"

AttentionKind = Literal["flash", "unfused"]
AttentionImplementation = Literal["current", "flash1", "triton", "xformers"]
LossKind = Literal["vocab-parallel", "eager"]
ActivationKind = Literal["fused", "eager"]


class Stack(BaseModel):
    """One framework of one era; every fraction is dimensionless and lies in [0, 1].

    Attributes:
        attention: `flash` (fused, masked blocks skipped) or `unfused` (scores written, full
            square).
        attention_implementation: Which fused kernel, `current` being the one that the chips'
            parameters were fitted on.
        pointwise_factor: Bytes of element-wise passes relative to the fused passes of the sheet.
        loss_factor: Bytes of the loss's passes relative to those of one softmax over fp32 logits.
        gated_activation: Whether SwiGLU is one kernel.
        loss: Where logits live: `vocab-parallel` (fp32, divided over tp), or `eager`
            (whole, with bf16, fp32 and log-softmax copies).
        rebuilds_sharded_inputs: Under sequence parallelism only the shard of a linear's input is
            saved and backward gathers it again [K22 4.2.2].
        accumulates_in_matmul: Weight gradients are added to fp32 buffers by the matmul itself.
        scatters_p2p: A pipeline message is cut into tp slices even without sequence parallelism
            [SC21 4.1].
        shards_master: ZeRO-3 keeps one fp32 shard as weight and master, and gathers bf16 (FSDP2).
        reshards_last_unit: ZeRO-3 drops norm and head between forward and backward.
        overlap_grad_reduce: Share of gradient synchronisation that may hide behind backward.
        overlap_param_gather: Share of the ZeRO-1/2 parameter gather that may hide behind forward.
        overlap_tp: Share of tensor-parallel collectives hidden behind compute.
        overlap_p2p: Share of pipeline messages hidden behind compute.
        overlap_slowdown: Compute under ZeRO-3 gathers takes this factor longer.
        expert_load: Load of the fullest expert rank over the mean.
        saves_extras: Norm statistics, log-sum-exp and token ids are counted as saved.
        launches_forward: Kernels launched for the forward of one layer.
        launches_backward: Kernels launched for its backward.
        launch_s: Host seconds a launch.
        blocking_launches: The host waits for every kernel (`CUDA_LAUNCH_BLOCKING=1`), so that
            its time adds to the device's and is never hidden by it.
        reserve_bytes: Memory never used by tensors, fixed part.
        reserve_fraction: The same, as a share of capacity.
        compute_factor: Level of compute time, 1 where nothing was fitted.
        network_factor: Level of communication time, 1 where nothing was fitted.
        level_sd: Standard deviation of the log level of a stack like this one.
        structure_sd: The same of what remains between plans of one stack.
        calibration: `kernels-only` where no published training run told a factor, `shipped` where
            one did, `own` where the user's file states its own level.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    description: str = ""
    attention: AttentionKind
    attention_implementation: AttentionImplementation = "current"
    pointwise_factor: float = Field(gt=0)
    loss_factor: float = Field(default=1.0, gt=0)
    gated_activation: ActivationKind
    loss: LossKind
    rebuilds_sharded_inputs: bool
    accumulates_in_matmul: bool
    scatters_p2p: bool
    shards_master: bool
    reshards_last_unit: bool
    overlap_grad_reduce: float = Field(ge=0, le=1)
    overlap_param_gather: float = Field(ge=0, le=1)
    overlap_tp: float = Field(ge=0, le=1)
    overlap_p2p: float = Field(ge=0, le=1)
    overlap_slowdown: float = Field(ge=1)
    expert_load: float = Field(ge=1)
    saves_extras: bool
    launches_forward: float = Field(ge=0)
    launches_backward: float = Field(ge=0)
    launch_s: float = Field(ge=0)
    blocking_launches: bool = False
    reserve_bytes: float = Field(ge=0)
    reserve_fraction: float = Field(ge=0, lt=1)
    compute_factor: float = Field(default=1.0, gt=0)
    network_factor: float = Field(default=1.0, gt=0)
    level_sd: float = Field(ge=0)
    structure_sd: float = Field(ge=0)
    calibration: Literal["kernels-only", "shipped", "own"] = "kernels-only"


_FRACTIONS = ("overlap_grad_reduce", "overlap_param_gather", "overlap_tp", "overlap_p2p")
_FLAGS = (
    "rebuilds_sharded_inputs",
    "accumulates_in_matmul",
    "scatters_p2p",
    "shards_master",
    "reshards_last_unit",
    "saves_extras",
)
_NUMBERS = {
    "pointwise_factor": (0.1, 10.0),
    "loss_factor": (0.1, 10.0),
    "overlap_slowdown": (1.0, 3.0),
    "expert_load": (1.0, 10.0),
    "launches_forward": (0.0, 1e4),
    "launches_backward": (0.0, 1e4),
    "reserve_fraction": (0.0, 0.9),
    "compute_factor": (0.2, 5.0),
    "network_factor": (0.2, 20.0),
    "level_sd": (0.0, 1.0),
    "structure_sd": (0.0, 1.0),
}
_OPTIONAL = ("loss_factor", "compute_factor", "network_factor")
_WORDS = {
    "attention": get_args(AttentionKind),
    "gated_activation": get_args(ActivationKind),
    "loss": get_args(LossKind),
}


def list_stacks() -> list[str]:
    """Names of the bundled stacks."""
    return sorted(path.stem for path in HERE.glob("*.yaml") if path.stem != "levels")


def default_stack() -> Stack:
    """The stack taken where none is chosen."""
    return load_stack(DEFAULT)


def load_stack(name_or_path: str | Path) -> Stack:
    """A bundled stack by name, or one from a YAML file.

    Raises:
        ConfigError: Unknown name, or a malformed file.
    """
    text = str(name_or_path)
    if text.endswith((".yaml", ".yml")):
        top = load_document(text, ("stack",))
        stack = _read(top)
        own = "compute_factor" in top or "network_factor" in top
        return stack.model_copy(update={"calibration": "own"}) if own else stack
    known = list_stacks()
    if text not in known:
        near = difflib.get_close_matches(text, known, n=1)
        raise ConfigError(
            f"no stack named {text!r}",
            field="stack",
            value=text,
            allowed=known,
            hint=f"did you mean {near[0]!r}?" if near else None,
        )
    return _read(load_document(HERE / f"{text}.yaml", ("stack",)))


def _read(top: Section) -> Stack:
    required = (
        *_WORDS,
        *_FLAGS,
        *_FRACTIONS,
        *(key for key in _NUMBERS if key not in _OPTIONAL),
        "launch_time",
        "reserve",
    )
    top.only(
        (
            "kind",
            "name",
            "description",
            "source",
            "date",
            "status",
            "notes",
            *required,
            *_OPTIONAL,
            "attention_implementation",
            "blocking_launches",
        ),
        ("name", *required),
    )
    fields: dict[str, object] = {
        "name": top.text("name"),
        "description": top.text("description", ""),
    }
    fields |= {key: top.choice(key, allowed) for key, allowed in _WORDS.items()}
    fields["attention_implementation"] = top.choice(
        "attention_implementation", get_args(AttentionImplementation), "current"
    )
    fields |= {key: top.flag(key, False) for key in (*_FLAGS, "blocking_launches")}
    fields |= {key: top.number(key, minimum=0.0, maximum=1.0) for key in _FRACTIONS}
    for key, (low, high) in _NUMBERS.items():
        if key in top:
            fields[key] = top.number(key, minimum=low, maximum=high)
    launch = top.quantity("launch_time", "s", required=True, zero=True)
    reserve = top.quantity("reserve", "bytes", required=True, zero=True)
    fields["launch_s"] = 0.0 if launch is None else launch.value
    fields["reserve_bytes"] = 0.0 if reserve is None else reserve.value
    return Stack.model_validate(fields)
