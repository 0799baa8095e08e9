"""A training job's work: a model, the length of its sequences, the precision of its arithmetic."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from dse.precision import PRECISIONS
from dse.workload.config import TransformerConfig
from hwmodels.errors import ConfigError

LONGEST_DEFAULT_SEQUENCE = 4096


class Workload(BaseModel):
    """What every plan of a job trains."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    config: TransformerConfig
    seq_length: int
    precision: str = "bf16"


def make_workload(
    config: TransformerConfig, seq_length: int | None = None, precision: str = "bf16"
) -> Workload:
    """A workload, with the sequence length defaulting to the model's maximum or 4096.

    Raises:
        ConfigError: A sequence that the model's position table cannot hold, or an unknown
            precision.
    """
    if precision not in PRECISIONS:
        raise ConfigError(
            f"precision {precision!r} is not known",
            field="precision",
            value=precision,
            allowed=PRECISIONS,
        )
    length = (
        seq_length if seq_length is not None else min(config.max_seq, LONGEST_DEFAULT_SEQUENCE)
    )
    if length < 1:
        raise ConfigError(
            f"seq_length = {length} is not a length",
            field="seq_length",
            value=length,
            allowed="an integer from 1",
        )
    rows = config.position_rows
    if config.position == "learned" and length > min(rows, config.max_seq):
        raise ConfigError(
            f"{config.name} has {rows} learned positions, fewer than seq_length = {length}",
            field="seq_length",
            value=length,
            allowed=f"1 to {min(rows, config.max_seq)}",
        )
    return Workload(config=config, seq_length=length, precision=precision)
