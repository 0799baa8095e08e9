"""Read a Megatron-LM argument line into the fields of a plan.

Megatron's defaults hold, not ours: without `--sequence-parallel` there is none, without
`--use-distributed-optimizer` the optimizer is replicated, and experts are divided by tp unless
told otherwise. What changes the step and is not modelled is refused by name; what does not is
ignored with a warning.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from dse.megatron.flags import (
    PLAN_FLAGS,
    REFUSED,
    SHAPE_FLAGS,
    STACK_FLAGS,
    Kind,
    is_harmless,
)
from dse.megatron.shape import Given, require_agreement, shape, whole
from dse.workload.config import TransformerConfig, shown
from hwmodels.errors import ConfigError, UnsupportedError

MAX_FILE_BYTES = 1 << 20
SHARDING = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
STATES = {"fp32": "adam", "bf16": "adam-bf16", "fp8": "adam-8bit"}


@dataclass(frozen=True, slots=True)
class MegatronRun:
    """What an argument line says.

    Attributes:
        plan: Fields of `dse.Plan`; `global_batch_size` is absent where the line leaves it to the
            number of devices.
        model: The model that was passed in, or the one that the line describes.
        seq_length: `--seq-length`, if given.
        precision: What `--bf16`, `--fp16` and `--fp8-format` amount to.
        warnings: One sentence a flag that was not used.
    """

    plan: dict[str, object]
    model: TransformerConfig
    seq_length: int | None
    precision: str
    warnings: tuple[str, ...]


def read_file(path: str | Path, model: TransformerConfig | None = None) -> MegatronRun:
    """`read_arguments` of a file, which may hold line breaks, backslashes and `#` comments.

    Raises:
        ConfigError: The file cannot be read as text, or its content is wrong.
    """
    name = str(path)
    try:
        with open(path, "rb") as stream:
            raw = stream.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as problem:
        reason = problem.strerror if isinstance(problem, OSError) else str(problem)
        raise ConfigError(f"cannot be read: {reason}", file=name) from None
    if len(raw) > MAX_FILE_BYTES:
        raise ConfigError("an argument file of more than 1 MiB is not one", file=name)
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        raise ConfigError("the file is not text (UTF-8)", file=name) from None
    if "\0" in text:
        raise ConfigError("the file is not text (it holds a zero byte)", file=name)
    try:
        return read_arguments(text, model)
    except ConfigError as problem:
        if problem.file is None:
            problem.file = name
        raise


def read_arguments(text: str, model: TransformerConfig | None = None) -> MegatronRun:
    """Read an argument line; a launcher and a script in front of it are skipped.

    Args:
        text: For example `--tensor-model-parallel-size 8 --sequence-parallel ...`.
        model: The model, if known; flags of its shape must then agree with it.

    Raises:
        ConfigError: A malformed line, a wrong value, or a shape that contradicts `model`.
        UnsupportedError: A flag that changes the step in a way that is not modelled.
    """
    given, warnings = _sorted_out(_tokens(text))
    seq_length = whole(given, "seq-length") if "seq-length" in given else None
    if model is None:
        model = shape(given)
    else:
        require_agreement(given, model)
    tp, pp = (
        whole(given, "tensor-model-parallel-size"),
        whole(given, "pipeline-model-parallel-size"),
    )
    plan: dict[str, object] = {
        "tp": tp,
        "pp": pp,
        "cp": whole(given, "context-parallel-size"),
        "ep": whole(given, "expert-model-parallel-size"),
        "etp": whole(given, "expert-tensor-parallel-size", tp if model.experts else 1),
        "vpp": _chunks(given, model, pp),
        "micro_batch_size": whole(given, "micro-batch-size"),
        "sequence_parallel": "sequence-parallel" in given and tp > 1,
        "zero": _zero(given),
        "recompute": _recompute(given, model, pp, warnings),
        "mesh_order": "tp-cp-pp-dp" if "use-tp-pp-dp-mapping" in given else "tp-cp-dp-pp",
        "optimizer": _optimizer(given),
        "grad_dtype": _grad_dtype(given),
        "first_stage_layers": whole(given, "decoder-first-pipeline-num-layers", 0),
        "last_stage_layers": whole(given, "decoder-last-pipeline-num-layers", 0),
    }
    if "global-batch-size" in given:
        plan["global_batch_size"] = whole(given, "global-batch-size")
    if given.get("make-vocab-size-divisible-by", "128") != "128":
        raise _not_modelled(
            "make-vocab-size-divisible-by", given["make-vocab-size-divisible-by"], ["128"]
        )
    if given.get("cp-comm-type", "p2p") != "p2p":
        raise _not_modelled("cp-comm-type", given["cp-comm-type"], ["p2p"])
    return MegatronRun(plan, model, seq_length, _precision(given), tuple(warnings))


def _tokens(text: str) -> list[str]:
    try:
        # a backslash before a line break joins lines for a shell, and is a literal for shlex
        tokens = shlex.split(re.sub(r"\\\r?\n", " ", text), comments=True)
    except ValueError as problem:
        raise ConfigError(f"the argument line is malformed: {problem}".lower()) from None
    scripts = [place for place, token in enumerate(tokens) if token.endswith(".py")]
    tokens = tokens[scripts[0] + 1 :] if scripts else tokens
    if not tokens:
        raise ConfigError("the argument line holds no flags", allowed="Megatron-LM flags")
    for token in tokens:
        if "$" in token:
            raise ConfigError(
                f"{shown(token)} holds a shell variable; write its value",
                field=shown(token),
                value=shown(token),
            )
    if not tokens[0].startswith("--"):
        raise ConfigError(
            f"{shown(tokens[0])} is not a Megatron-LM flag",
            value=shown(tokens[0]),
            allowed="flags that begin with --",
        )
    return tokens


def _sorted_out(tokens: list[str]) -> tuple[dict[str, str], list[str]]:
    """Flags that are read, with their values, and a warning for each that is not."""
    read: Mapping[str, Kind] = {**PLAN_FLAGS, **SHAPE_FLAGS}
    given: dict[str, str] = {}
    warnings: list[str] = []
    place = 0
    while place < len(tokens):
        flag, equals, first = tokens[place].removeprefix("--").partition("=")
        values = [first] if equals else []
        place += 1
        while place < len(tokens) and not tokens[place].startswith("--"):
            values.append(tokens[place])
            place += 1
        flag = flag.replace("_", "-")
        if flag in read:
            given[flag] = _value(flag, read[flag], values)
        elif flag in STACK_FLAGS:
            warnings.append(f"--{flag} is described by the stack and was not read")
        elif is_harmless(flag):
            warnings.append(f"--{flag} does not change the step and was ignored")
        elif flag in REFUSED:
            raise UnsupportedError(
                f"Megatron-LM flag --{flag} is not modelled: {REFUSED[flag]}",
                field=f"--{flag}",
                value=shown(" ".join(values)),
            )
        else:
            near = get_close_matches(flag, [*read, *STACK_FLAGS], n=1)
            raise UnsupportedError(
                f"Megatron-LM flag --{shown(flag)[1:-1]} is unknown here and may change the step",
                field=f"--{shown(flag)[1:-1]}",
                value=shown(" ".join(values)),
                hint=f"did you mean --{near[0]}?" if near else None,
            )
    return given, warnings


def _value(flag: str, kind: Kind, values: list[str]) -> str:
    if kind == "switch":
        if values:
            raise ConfigError(
                f"--{flag} takes no value", field=f"--{flag}", value=shown(" ".join(values))
            )
        return ""
    if len(values) != 1:
        raise ConfigError(
            f"--{flag} takes one value, not {len(values)}",
            field=f"--{flag}",
            value=shown(" ".join(values)),
        )
    return values[0]


def _chunks(given: Given, model: TransformerConfig, pp: int) -> int:
    flag, direct = "num-layers-per-virtual-pipeline-stage", "num-virtual-stages-per-pipeline-rank"
    if flag in given and direct in given:
        raise ConfigError(f"--{flag} and --{direct} exclude each other", field=f"--{flag}")
    if flag not in given:
        return whole(given, direct)
    layers = whole(given, flag)
    if model.layers % (pp * layers):
        raise ConfigError(
            f"--{flag} {layers} times pp = {pp} does not divide the {model.layers} layers",
            field=f"--{flag}",
            value=layers,
        )
    return model.layers // (pp * layers)


def _zero(given: Given) -> int:
    sharded = "use-distributed-optimizer" in given
    strategy = given.get("data-parallel-sharding-strategy")
    if strategy is not None and strategy not in SHARDING:
        raise ConfigError(
            f"--data-parallel-sharding-strategy {shown(strategy)} is not one",
            field="--data-parallel-sharding-strategy",
            value=shown(strategy),
            allowed=list(SHARDING),
        )
    if "use-megatron-fsdp" in given or "use-custom-fsdp" in given:
        return SHARDING[strategy or "no_shard"]
    return 1 if sharded else 0


def _recompute(given: Given, model: TransformerConfig, pp: int, warnings: list[str]) -> str:
    granularity = given.get("recompute-granularity")
    if granularity is None:
        granularity = "selective" if "recompute-activations" in given else "none"
    if granularity not in ("none", "selective", "full"):
        raise ConfigError(
            f"--recompute-granularity {shown(granularity)} is not one",
            field="--recompute-granularity",
            value=shown(granularity),
            allowed=["selective", "full"],
        )
    if granularity == "selective" and given.get("recompute-modules", "core_attn") != "core_attn":
        raise _not_modelled("recompute-modules", given["recompute-modules"], ["core_attn"])
    if granularity != "full":
        return granularity
    method = given.get("recompute-method")
    if method is None:
        warnings.append("--recompute-granularity full without --recompute-method: every layer")
        return "full"
    layers = whole(given, "recompute-num-layers")
    every = model.layers // (pp * _chunks(given, model, pp))
    if method == "uniform" and layers == 1:
        return "full"
    if method == "block" and layers >= every:
        return "full"
    raise _not_modelled(
        "recompute-method",
        f"{method} --recompute-num-layers {layers}",
        ["uniform --recompute-num-layers 1", f"block --recompute-num-layers {every}"],
    )


def _optimizer(given: Given) -> str:
    name = given.get("optimizer", "adam")
    if name == "sgd":
        return "sgd-momentum"
    if name != "adam":
        raise _not_modelled("optimizer", name, ["adam", "sgd"])
    first, second = given.get("exp-avg-dtype", "fp32"), given.get("exp-avg-sq-dtype", "fp32")
    if first != second or first not in STATES:
        raise _not_modelled(
            "exp-avg-dtype", f"{first} with --exp-avg-sq-dtype {second}", [*STATES]
        )
    if first != "fp32" and "use-precision-aware-optimizer" not in given:
        raise ConfigError(
            "--exp-avg-dtype needs --use-precision-aware-optimizer",
            field="--exp-avg-dtype",
            value=first,
        )
    return STATES[first]


def _precision(given: Given) -> str:
    if "bf16" in given and "fp16" in given:
        raise ConfigError("--bf16 and --fp16 exclude each other", field="--bf16")
    if "fp8-format" in given:
        return "fp8"
    return "bf16" if "bf16" in given else "fp16" if "fp16" in given else "fp32"


def _grad_dtype(given: Given) -> str:
    """Megatron accumulates in fp32 under bf16 unless told not to, under fp16 only if told to."""
    if "grad-reduce-in-bf16" in given:
        return "bf16"
    plain_fp16 = "fp16" in given and "accumulate-allreduce-grads-in-fp32" not in given
    return "fp16" if plain_fp16 else "fp32"


def _not_modelled(flag: str, value: str, allowed: list[str]) -> UnsupportedError:
    return UnsupportedError(
        f"--{flag} {shown(value)[1:-1]} is not modelled",
        field=f"--{flag}",
        value=shown(value)[1:-1],
        allowed=allowed,
    )
