"""Local sizes of named axes for many plans at once.

K keys (distinct combinations of degrees and micro-batch) divide every axis of the model. Sizes of
rows that depend on routing (`slot`, `routed`) are those of a balanced exchange: every expert
receives its mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dse.layout import Layout
from dse.plan import IntArray
from dse.workload.config import TransformerConfig
from dse.workload.operators import Term
from hwmodels.table import FloatArray

VOCAB_MULTIPLE = 128
"""The vocabulary is padded to a multiple of this times tp [Mcore]; padded rows cost time and
memory.
"""


def padded_vocab(vocab: int, tp: IntArray) -> IntArray:
    """(K,) rows of the embedding after padding to a multiple of 128·tp."""
    multiple = VOCAB_MULTIPLE * tp
    padded: IntArray = -(-vocab // multiple) * multiple
    return padded


@dataclass(frozen=True, slots=True)
class Shapes:
    """Axes of one micro-batch and the degrees that divide them.

    Args:
        sizes: Axis to (K,) sizes before division; `batch` is the micro-batch of one data-parallel
            rank.
        degrees: Mesh dimension to (K,) ranks. dp and edp count 1: sizes are already theirs.
    """

    sizes: Mapping[str, FloatArray]
    degrees: Mapping[str, FloatArray]

    def local(self, axes: Sequence[str], layout: Layout, *, without: str = "") -> FloatArray:
        """(K,) elements that one device holds of a tensor of `axes` laid out as `layout`.

        A key/value head is replicated where tp exceeds their number, so no axis falls below one.

        Args:
            axes: The tensor's axes.
            layout: Its layout.
            without: A mesh dimension to leave undivided: the tensor after a gather over it.
        """
        count: FloatArray = np.ones_like(self.degrees["tp"])
        for axis in axes:
            size = self.sizes[axis]
            for dim in layout.dims_of(axis):
                if dim != without:
                    size = size / self.degrees[dim]
            count = count * np.maximum(size, 1.0)
        return count

    def total(self, terms: Sequence[Term], layout: Layout) -> FloatArray:
        """(K,) sum of coefficient times local elements over `terms`."""
        amount: FloatArray = np.zeros_like(self.degrees["tp"])
        for term in terms:
            amount = amount + term.coefficient * self.local(term.axes, layout)
        return amount


def shapes_of(
    config: TransformerConfig,
    seq_length: int,
    keys: Mapping[str, IntArray],
    *,
    sequence_parallel: bool,
) -> Shapes:
    """Sizes and degrees of K keys.

    Args:
        config: The model.
        seq_length: Tokens of a sequence.
        keys: (K,) columns `tp`, `cp`, `micro_batch_size`, and for experts `ep`, `etp`.
        sequence_parallel: Whether tp also divides the sequence of the residual stream.
    """
    tp, cp = keys["tp"].astype(float), keys["cp"].astype(float)
    one = np.ones_like(tp)
    batch = keys["micro_batch_size"].astype(float)
    ep = keys["ep"].astype(float) if "ep" in keys else one
    etp = keys["etp"].astype(float) if "etp" in keys else one
    stream_tokens = batch * seq_length / cp / (tp if sequence_parallel else one)
    routed = stream_tokens * max(config.topk, 1) * ep * etp
    sizes: dict[str, FloatArray] = {
        "batch": batch,
        "seq": one * seq_length,
        "keys": one * seq_length,
        "hidden": one * config.hidden,
        "heads": one * config.heads,
        "kv_heads": one * config.kv_heads,
        "head_dim": one * config.head_dim,
        "ffn": one * config.ffn,
        "vocab": padded_vocab(config.vocab, keys["tp"]).astype(float),
        "position": one * config.position_rows,
        "expert": one * max(config.experts, 1),
        "expert_total": one * max(config.experts, 1),
        "expert_ffn": one * max(config.expert_ffn, 1),
        "shared_ffn": one * max(config.shared_expert_ffn, 1),
        "routed": routed,
        "slot": routed / max(config.experts, 1),
    }
    degrees = {"tp": tp, "cp": cp, "ep": ep, "etp": etp, "dp": one, "edp": one}
    return Shapes(sizes, degrees)
