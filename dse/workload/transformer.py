"""The blocks of a decoder-only transformer: operators over named axes, layouts at the cut points.

Three kinds of block: embedding, layer (attention and a dense or expert FFN), head. Layouts are
declared where they change, nowhere inferred:

    stream      the residual stream: sequence over cp, and over tp under sequence parallelism
    gathered    what a column-parallel linear reads: sequence over cp only
    heads, ffn, vocab
                the work between a column- and a row-parallel linear, divided over tp
    routed      tokens after the router, one row per chosen expert: over ep and etp
    experts     the same rows at their experts: expert over ep, width over etp

Bytes of passes and of saved tensors are those of the formula sheet (`docs/model.md`, sections on
activations and kernels), stated for 16-bit elements. References: [K22] Korthikanti et al.
2205.05198; [Mcore] Megatron-Core.
"""

from __future__ import annotations

from dataclasses import dataclass

from dse.layout import Edge, Layout
from dse.precision import LINEAR_INPUT_BYTES, WIDE_PRECISIONS
from dse.stacks import Stack
from dse.workload.config import TransformerConfig
from dse.workload.operators import Attention, Block, Matmul, Operator, Pointwise, Saved, Term

TOKENS = ("batch", "seq")
STREAM = ("batch", "seq", "hidden")
LOSS_FORWARD_BYTES = 18.0
LOSS_BACKWARD_BYTES = 10.0
"""Bytes a logit that an unfused loss moves: cast, maximum, exponentials, gradient; 28 in all."""
TP = frozenset({"tp"})
EXPERT_DIMS = frozenset({"ep", "etp"})


@dataclass(frozen=True, slots=True)
class Blocks:
    """The three kinds of block of one model under one choice of sequence parallelism."""

    embedding: Block
    layer: Block
    head: Block


def build(
    config: TransformerConfig, stack: Stack, *, precision: str, sequence_parallel: bool
) -> Blocks:
    """Blocks of `config` as `stack` executes them in `precision`."""
    builder = _Builder(config, stack, precision, sequence_parallel)
    return Blocks(builder.embedding(), builder.layer(), builder.head())


class _Builder:
    def __init__(
        self, config: TransformerConfig, stack: Stack, precision: str, sequence_parallel: bool
    ) -> None:
        self.config = config
        self.stack = stack
        self.element_bytes = 4.0 if precision in WIDE_PRECISIONS else 2.0
        self.wide = self.element_bytes / 2.0  # byte counts of passes are stated at 16 bit
        self.linear_input_bytes = LINEAR_INPUT_BYTES.get(precision, self.element_bytes)
        self.sequence_parallel = sequence_parallel
        self.stream = Layout(
            {"batch": ("dp",), "seq": ("cp", "tp") if sequence_parallel else ("cp",)}
        )
        self.gathered = Layout({"batch": ("dp",), "seq": ("cp",)})
        self.partial = Layout(self.gathered.shards, TP)

    def divided(self, *axes: str) -> Layout:
        """Work of a tensor-parallel linear: tokens over cp, `axes` over tp."""
        return Layout({**self.gathered.shards, **dict.fromkeys(axes, ("tp",))})

    def moved(self, bytes_at_16_bit: float, axes: tuple[str, ...]) -> Term:
        """Bytes that a pass moves an element, at the precision's width."""
        return Term(bytes_at_16_bit * self.wide, axes)

    # Edges ---------------------------------------------------------------------------------

    def enter(self, name: str, consumer: str, kept_bytes: float) -> Edge:
        """Stream to a column-parallel linear, which keeps `kept_bytes` an element of it."""
        return Edge(
            name,
            STREAM,
            self.stream,
            self.gathered,
            consumer_splits=TP,
            element_bytes=self.element_bytes,
            rebuilt=self.stack.rebuilds_sharded_inputs,
            kept_bytes=kept_bytes,
            consumer=consumer,
        )

    def leave(self, name: str) -> Edge:
        """Partial sums of a row-parallel linear to the stream."""
        splits = TP if self.sequence_parallel else frozenset[str]()
        return Edge(
            name,
            STREAM,
            self.partial,
            self.stream,
            consumer_splits=splits,
            element_bytes=self.element_bytes,
        )

    def exchange(
        self,
        name: str,
        source: Layout,
        target: Layout,
        splits: frozenset[str],
        dims: tuple[str, ...],
    ) -> Edge:
        """Tokens to their experts, or back."""
        return Edge(
            name,
            ("routed", "hidden"),
            source,
            target,
            consumer_splits=splits,
            dims=dims,
            element_bytes=self.element_bytes,
            link="ep",
        )

    # Passes --------------------------------------------------------------------------------

    def norm(self, name: str, output_bytes: float) -> Pointwise:
        """A norm over the stream; saves its input, `output_bytes` an element of its output (what
        its reader keeps) and statistics.
        """
        config = self.config
        vectors = 2.0 if config.norm_bias else 1.0
        saves = [Saved(f"{name} input", Term(self.element_bytes, STREAM))]
        if output_bytes:
            saves.append(Saved(f"{name} output", Term(output_bytes, STREAM)))
        if self.stack.saves_extras:
            statistics = 8.0 if config.norm == "layernorm" else 4.0
            saves.append(Saved(f"{name} statistics", Term(statistics, TOKENS)))
        return Pointwise(
            name,
            forward=(self.moved(4.0, STREAM),),
            backward=(self.moved(6.0, STREAM),),
            layout=self.stream,
            weights=(Term(vectors, ("hidden",)),),
            saves=tuple(saves),
        )

    def residual(self, name: str, *, bias: bool) -> Pointwise:
        """Bias, dropout and residual add, on the stream."""
        dropout = self.config.dropout > 0
        return Pointwise(
            name,
            forward=(self.moved(7.0 if dropout else 6.0, STREAM),),
            backward=(self.moved(5.0, STREAM),) if dropout else (),
            layout=self.stream,
            weights=(Term(1.0, ("hidden",)),) if bias else (),
            saves=(Saved(f"{name} dropout mask", Term(1.0, STREAM)),) if dropout else (),
        )

    # Attention -----------------------------------------------------------------------------

    def attention(self) -> tuple[list[Operator], list[Edge]]:
        config = self.config
        q, kv = ("heads", "head_dim"), ("kv_heads", "head_dim")
        layout = self.divided("heads", "kv_heads")
        operators: list[Operator] = [
            self.norm("norm 1", self.linear_input_bytes),
            Matmul(
                "qkv",
                rows=TOKENS,
                contract=("hidden",),
                columns=(Term(1.0, q), Term(2.0, kv)),
                layout=layout,
                bias=(Term(1.0, q), Term(2.0, kv)) if config.qkv_bias else (),
            ),
        ]
        if config.qk_norm:
            both = (self.moved(4.0, (*TOKENS, *q)), self.moved(4.0, (*TOKENS, *kv)))
            operators.append(
                Pointwise(
                    "qk norm",
                    forward=both,
                    backward=tuple(self.moved(6.0, term.axes) for term in both),
                    layout=layout,
                    weights=(Term(2.0, ("head_dim",)),),
                    saves=tuple(
                        Saved("qk norm input", Term(self.element_bytes, t.axes)) for t in both
                    ),
                )
            )
        if config.position == "rotary":
            both = (self.moved(4.0, (*TOKENS, *q)), self.moved(4.0, (*TOKENS, *kv)))
            operators.append(Pointwise("rotary", forward=both, backward=both, layout=layout))
        operators += [
            Attention("core attention", layout, saves=self._attention_saves()),
            Matmul("proj", TOKENS, q, (Term(1.0, ("hidden",)),), layout),
            self.residual("residual 1", bias=config.out_bias),
        ]
        return operators, [
            self.enter("qkv in", "qkv", self.linear_input_bytes),
            self.leave("proj out"),
        ]

    def _attention_saves(self) -> tuple[Saved, ...]:
        """Q, K, V and O always; scores only where attention is not fused.

        Unfused [K22, 5as/h]: softmax output 2, its dropout mask 1, dropout output 2. Fused: the
        log-sum-exp, fp32, one a query and head. An fp8 linear keeps its own copy of O.
        """
        config, stack = self.config, self.stack
        q, kv = ("heads", "head_dim"), ("kv_heads", "head_dim")
        saves = [
            Saved("q", Term(self.element_bytes, (*TOKENS, *q))),
            Saved("k, v", Term(2.0 * self.element_bytes, (*TOKENS, *kv))),
            Saved("attention output", Term(self.element_bytes, (*TOKENS, *q))),
        ]
        if self.linear_input_bytes < 2.0:
            saves.append(Saved("proj input", Term(self.linear_input_bytes, (*TOKENS, *q))))
        if stack.attention == "unfused":
            score_bytes = self.element_bytes
            if config.attention_dropout > 0:
                score_bytes += 1.0 + self.element_bytes
            scores = (*TOKENS, "heads", "keys")
            saves.append(Saved("scores", Term(score_bytes, scores), core=True))
        elif stack.saves_extras:
            saves.append(Saved("log-sum-exp", Term(4.0, (*TOKENS, "heads")), core=True))
        return tuple(saves)

    # Feed-forward --------------------------------------------------------------------------

    def ffn(self, width: str, *, prefix: str, tokens: tuple[str, ...], layout: Layout,
            batch: tuple[str, ...] = ()) -> list[Operator]:  # fmt: skip
        """Up, activation, down over the width axis `width`; dense, shared or routed alike."""
        config, stack = self.config, self.stack
        shape = (*batch, *tokens, width)
        halves = 2.0 if config.gated else 1.0
        biased = config.ffn_bias
        if config.gated:
            forward, backward = (6.0, 10.0) if stack.gated_activation == "fused" else (10.0, 18.0)
            inner = 4.0 if stack.gated_activation == "fused" else 6.0
        else:
            forward, backward = 4.0, 6.0
            inner = 0.0 if config.activation == "relu" else 2.0
        saves = [Saved(f"{prefix}fc2 input", Term(self.linear_input_bytes, shape))]
        if inner:
            saves.append(Saved(f"{prefix}activation input", Term(inner * self.wide, shape)))
        return [
            Matmul(
                f"{prefix}fc1",
                tokens,
                ("hidden",),
                (Term(halves, (width,)),),
                layout,
                batch=batch,
                bias=(Term(halves, (*batch, width)),) if biased else (),
            ),
            Pointwise(
                f"{prefix}activation",
                forward=(self.moved(forward, shape),),
                backward=(self.moved(backward, shape),),
                layout=layout,
                saves=tuple(saves),
            ),
            Matmul(
                f"{prefix}fc2", tokens, (width,), (Term(1.0, ("hidden",)),), layout, batch=batch
            ),
        ]

    def dense(self) -> tuple[list[Operator], list[Edge]]:
        operators: list[Operator] = [
            self.norm("norm 2", self.linear_input_bytes),
            *self.ffn("ffn", prefix="", tokens=TOKENS, layout=self.divided("ffn")),
            self.residual("residual 2", bias=self.config.ffn_bias),
        ]
        return operators, [
            self.enter("fc1 in", "fc1", self.linear_input_bytes),
            self.leave("fc2 out"),
        ]

    def mixture(self) -> tuple[list[Operator], list[Edge]]:
        """Router, dispatch, experts, combine; shared experts as a dense FFN beside them."""
        config = self.config
        rows = ("routed", "hidden")
        routed = Layout({"routed": ("ep", "etp")})
        at_experts = Layout({"expert": ("ep",)})
        work = Layout({"expert": ("ep",), "expert_ffn": ("etp",), "slot": ("edp",)})
        summed = Layout({"expert": ("ep",)}, frozenset({"etp"}))
        both = Layout({**routed.shards, **work.shards})
        slots = ("expert", "slot", "hidden")
        operators: list[Operator] = [
            self.norm("norm 2", self.element_bytes),  # the router reads it unquantised
            Matmul(
                "router",
                TOKENS,
                ("hidden",),
                (Term(1.0, ("expert_total",)),),
                self.stream,
                bias=(Term(1.0, ("expert_total",)),) if config.router_bias else (),
                saves=(Saved("router", Term(8.0, (*TOKENS, "expert_total"))),),
                low_precision=False,
            ),
            Pointwise(
                "permute",
                forward=(self.moved(4.0, rows),),
                backward=(self.moved(4.0, rows),),
                layout=both,
                saves=(Saved("permuted input", Term(self.linear_input_bytes, slots)),),
            ),
            *self.ffn(
                "expert_ffn", prefix="expert ", tokens=("slot",), layout=work, batch=("expert",)
            ),
            Pointwise(
                "unpermute",
                forward=(self.moved(4.0, rows),),
                backward=(self.moved(4.0, rows),),
                layout=both,
                saves=(Saved("expert output", Term(self.element_bytes, slots)),),
            ),
        ]
        edges = [
            self.exchange("dispatch", routed, at_experts, EXPERT_DIMS, ("ep", "etp")),
            self.exchange("combine", summed, routed, frozenset(), ("etp", "ep")),
        ]
        if config.shared_expert_ffn:
            operators += self.ffn(
                "shared_ffn", prefix="shared ", tokens=TOKENS, layout=self.divided("shared_ffn")
            )
            edges += [
                self.enter("shared fc1 in", "shared fc1", self.linear_input_bytes),
                self.leave("shared fc2 out"),
            ]
        operators.append(self.residual("residual 2", bias=False))
        return operators, edges

    # Blocks --------------------------------------------------------------------------------

    def layer(self) -> Block:
        attention, attention_edges = self.attention()
        feed, feed_edges = self.mixture() if self.config.is_moe else self.dense()
        return Block("layer", (*attention, *feed), (*attention_edges, *feed_edges))

    def embedding(self) -> Block:
        """Vocabulary-parallel lookup; learned positions are added before the sequence is cut."""
        config = self.config
        lookup = Pointwise(
            "embedding",
            forward=(self.moved(4.0, STREAM),),
            backward=(self.moved(8.0, STREAM),),
            layout=Layout({**self.gathered.shards, "vocab": ("tp",)}),
            weights=(Term(1.0, ("vocab", "hidden")),),
            saves=(Saved("token ids", Term(8.0, TOKENS)),) if self.stack.saves_extras else (),
            kind="embedding",
            scaled=False,
        )
        operators: list[Operator] = [lookup]
        splits = TP if self.sequence_parallel else frozenset[str]()
        if config.position == "learned":
            operators.append(
                Pointwise(
                    "positions",
                    forward=(self.moved(6.0, STREAM),),
                    backward=(),
                    layout=self.gathered,
                    weights=(Term(1.0, ("position", "hidden")),),
                )
            )
            edges = [
                Edge(
                    "embedding out",
                    STREAM,
                    self.partial,
                    self.gathered,
                    frozenset(),
                    element_bytes=self.element_bytes,
                ),
                Edge(
                    "embedding slice",
                    STREAM,
                    self.gathered,
                    self.stream,
                    splits,
                    element_bytes=self.element_bytes,
                ),
            ]
        else:
            edges = [
                Edge(
                    "embedding out",
                    STREAM,
                    self.partial,
                    self.stream,
                    splits,
                    element_bytes=self.element_bytes,
                )
            ]
        if config.embedding_norm:
            # Its output is the input of the first layer's norm, which is counted there.
            operators.append(self.norm("embedding norm", 0.0))
        if config.dropout > 0:
            operators.append(
                Pointwise(
                    "embedding dropout",
                    forward=(self.moved(5.0, STREAM),),
                    backward=(self.moved(5.0, STREAM),),
                    layout=self.stream,
                    saves=(Saved("embedding dropout mask", Term(1.0, STREAM)),),
                )
            )
        return Block("embedding", tuple(operators), tuple(edges))

    def head(self) -> Block:
        """Final norm, vocabulary projection, loss. Logits are counted by `dse/memory.py`.

        A vocabulary-parallel loss reduces three numbers a token over tp; an eager one gathers the
        logits and works on all of them on every rank.
        """
        config = self.config
        divided = self.divided("vocab")
        parallel = self.stack.loss == "vocab-parallel"
        logits = (*TOKENS, "vocab")
        operators = (
            self.norm("final norm", self.element_bytes),
            Matmul(
                "head",
                TOKENS,
                ("hidden",),
                (Term(1.0, ("vocab",)),),
                divided,
                bias=(Term(1.0, ("vocab",)),) if config.head_bias else (),
                low_precision=False,
            ),
            Pointwise(
                "loss",
                forward=(self.moved(LOSS_FORWARD_BYTES * self.stack.loss_factor, logits),),
                backward=(self.moved(LOSS_BACKWARD_BYTES * self.stack.loss_factor, logits),),
                layout=divided if parallel else self.gathered,
                scaled=False,
            ),
        )
        sums = Edge(
            "loss",
            TOKENS,
            self.partial,
            self.gathered,
            frozenset(),
            element_bytes=4.0,
            repeats=3,
        )
        whole = Edge(
            "logits", logits, divided, self.gathered, frozenset(), element_bytes=self.element_bytes
        )
        edges = (self.enter("head in", "head", self.element_bytes), sums if parallel else whole)
        return Block("head", operators, edges)
