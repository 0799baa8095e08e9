"""Bytes of a parameter's copies by precision, gradient and master dtype, and optimizer.

Sources: ZeRO, arXiv 1910.02054 section 5; Megatron-Core's distributed-optimizer table (18, 6 +
12/d); 8-bit optimizers, arXiv 2110.02861 (two bytes and two fp32 scales a block of 256).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dse.plan import GRAD_DTYPES, MASTER_DTYPES, OPTIMIZERS, IntArray
from hwmodels.table import FloatArray

PRECISIONS = ("bf16", "fp16", "fp32", "tf32", "fp8", "fp4")
LOW_PRECISIONS = ("fp8", "fp4")
"""Linear layers multiply in this type; everything else stays in bf16."""
WIDE_PRECISIONS = ("fp32", "tf32")
"""Everything is stored in 32 bit; tf32 only rounds the operands of matrix products."""

LINEAR_INPUT_BYTES = {"fp8": 1.0, "fp4": 0.5}
"""Bytes an element of a low-precision linear's saved input."""

MOMENT_BYTES = {
    "adam": 8.0,
    "adam-bf16": 4.0,
    "adam-8bit": 2.0 + 2 * 4.0 / 256,
    "sgd-momentum": 4.0,
}
GRAD_BYTES = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0}
WEIGHT_BYTES = {"bf16": 2.0, "fp16": 2.0, "fp32": 4.0, "tf32": 4.0, "fp8": 3.0, "fp4": 2.5}
"""What is stored a parameter; fp8 and fp4 keep the 16-bit weight and one quantised copy."""
SENT_BYTES = {"bf16": 2.0, "fp16": 2.0, "fp32": 4.0, "tf32": 4.0, "fp8": 2.0, "fp4": 2.0}
"""What a parameter gather sends."""


@dataclass(frozen=True, slots=True)
class ParameterBytes:
    """(K,) bytes a parameter: stored weight, gradient, master copy, optimizer moments."""

    weight: FloatArray
    gradient: FloatArray
    master: FloatArray
    moments: FloatArray

    @property
    def update(self) -> FloatArray:
        """Bytes an optimizer moves a parameter it owns: all state in, all but gradients out.

        Adam in 16 bit with fp32 gradients: 4 + 4 + 8 in, 4 + 8 + 2 out = 30; fp32 Adam 28.
        """
        source = np.where(self.master > 0, self.master, self.weight)
        written = source + self.moments + np.where(self.master > 0, self.weight, 0.0)
        moved: FloatArray = self.gradient + source + self.moments + written
        return moved


def parameter_bytes(
    precision: str, grad_dtype: IntArray, master_dtype: IntArray, optimizer: IntArray
) -> ParameterBytes:
    """Bytes of K recipes; the three columns hold positions in the option lists of `dse/plan.py`.

    A model trained in fp32 or tf32 is its own master.
    """
    one = np.ones(len(optimizer))
    master = np.array([4.0 if name == "fp32" else 0.0 for name in MASTER_DTYPES])[master_dtype]
    return ParameterBytes(
        weight=one * WEIGHT_BYTES[precision],
        gradient=np.array([GRAD_BYTES[name] for name in GRAD_DTYPES])[grad_dtype],
        master=master * (0.0 if precision in WIDE_PRECISIONS else 1.0),
        moments=np.array([MOMENT_BYTES[name] for name in OPTIMIZERS])[optimizer],
    )
