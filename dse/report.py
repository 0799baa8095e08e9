"""The answer for one plan: a ledger of time and memory, what bounds it, how sure it is.

`Report.model_dump()` is the JSON that scripts rely on; field names carry units. Seconds of an
operator or a collective are those of all its calls in a step, on a device of the stage that fixes
the time.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from dse.plan import Plan

SCHEMA = "ridge-dse/evaluate/1"


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ExposedComm(_Frozen):
    """Seconds of communication that nothing hides, by mesh dimension."""

    tp: float
    cp: float
    ep: float
    pp: float
    dp: float


class Parts(_Frozen):
    """The ledger: the step time is compute, tp, cp, ep, pp, dp, bubble, optimizer, host, added."""

    compute: float
    exposed_comm: ExposedComm
    bubble: float
    optimizer: float
    host: float

    def in_order(self) -> list[tuple[str, float]]:
        """The terms in the order in which they are added."""
        exposed = [(name, getattr(self.exposed_comm, name)) for name in ExposedComm.model_fields]
        return [
            ("compute", self.compute),
            *exposed,
            ("bubble", self.bubble),
            ("optimizer", self.optimizer),
            ("host", self.host),
        ]


class StageMemory(_Frozen):
    """Peak bytes of a device of one pipeline stage; `total` leaves the reserve out."""

    weights: float
    gradients: float
    optimizer: float
    activations: float
    logits: float
    gathered: float
    workspace: float
    total: float
    reserve: float
    capacity: float


class Comm(_Frozen):
    """One kind of collective on the critical stage."""

    name: str
    group: str
    size: int
    span_nodes: int
    collective: str
    algorithm: str
    count_per_step: float
    bytes_per_call: float
    time_s: float
    exposed_s: float


class Operator(_Frozen):
    """One kind of kernel on the critical stage."""

    name: str
    kind: str
    shape: dict[str, float]
    count: float
    time_s: float
    bound: str


class ProvenanceShare(_Frozen):
    """Shares of the busy time that rest on measured, transferred and assumed parameters."""

    measured: float
    transferred: float
    assumed: float


class Report(_Frozen):
    """What one training step costs under one plan."""

    schema_: str = Field(default=SCHEMA, alias="schema")
    version: str
    calibration: str
    inputs_sha256: str
    seed: int
    warnings: tuple[str, ...]
    model: str
    cluster: str
    chips: int
    seq_length: int
    precision: str
    stack: str
    step_time_s: float
    interval_80_s: tuple[float, float]
    parts_s: Parts
    memory_bytes: tuple[StageMemory, ...]
    fits: bool
    params: int
    model_flop: int
    hardware_flop: int
    flop_convention: str
    mfu: float
    hfu: float
    tokens_per_s: float
    tokens_per_s_per_chip: float
    comm: tuple[Comm, ...]
    operators: tuple[Operator, ...]
    kernel_parameters: dict[str, float]
    provenance_share: ProvenanceShare
    bottleneck: str
    plan: Plan

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    @property
    def peak_memory_bytes(self) -> float:
        """Peak of the fullest stage, without reserve."""
        return max(stage.total for stage in self.memory_bytes)

    def model_dump(self, **options: Any) -> dict[str, Any]:
        """The JSON object; `schema` stands under its own name."""
        dumped = super().model_dump(**{"by_alias": True, **options})
        dumped["plan"]["num_microbatches"] = self.plan.global_batch_size // (
            self.plan.micro_batch_size * (self.plan.dp or 1)
        )
        return dumped
