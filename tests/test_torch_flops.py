"""Our FLOP and parameter counts against PyTorch's own counter on the same shapes."""

from __future__ import annotations

import pytest

from dse import TransformerConfig
from dse.workload.counts import forward_flop, model_flop, parameters

torch = pytest.importorskip("torch")
functional = torch.nn.functional


class Block(torch.nn.Module):
    """A pre-norm block with grouped-query attention and a gated or plain feed-forward part."""

    def __init__(self, c: TransformerConfig) -> None:
        super().__init__()
        width, kv_width = c.heads * c.head_dim, c.kv_heads * c.head_dim
        self.c = c
        self.norm1 = torch.nn.RMSNorm(c.hidden)
        self.norm2 = torch.nn.RMSNorm(c.hidden)
        self.q = torch.nn.Linear(c.hidden, width, bias=c.qkv_bias)
        self.k = torch.nn.Linear(c.hidden, kv_width, bias=c.qkv_bias)
        self.v = torch.nn.Linear(c.hidden, kv_width, bias=c.qkv_bias)
        self.o = torch.nn.Linear(width, c.hidden, bias=c.out_bias)
        self.up = torch.nn.Linear(c.hidden, c.ffn * (2 if c.gated else 1), bias=c.ffn_bias)
        self.down = torch.nn.Linear(c.ffn, c.hidden, bias=c.ffn_bias)

    def forward(self, x):
        c = self.c
        b, s, _ = x.shape
        y = self.norm1(x)
        q = self.q(y).view(b, s, c.heads, c.head_dim).transpose(1, 2)
        k = self.k(y).view(b, s, c.kv_heads, c.head_dim).transpose(1, 2)
        v = self.v(y).view(b, s, c.kv_heads, c.head_dim).transpose(1, 2)
        share = c.heads // c.kv_heads
        k, v = k.repeat_interleave(share, dim=1), v.repeat_interleave(share, dim=1)
        scores = (q @ k.transpose(-1, -2)).softmax(dim=-1)
        x = x + self.o((scores @ v).transpose(1, 2).reshape(b, s, -1))
        y = self.up(self.norm2(x))
        if c.gated:
            gate, y = y.chunk(2, dim=-1)
            y = functional.silu(gate) * y
        else:
            y = functional.gelu(y)
        return x + self.down(y)


class Model(torch.nn.Module):
    """Embedding, blocks, final norm and an untied head."""

    def __init__(self, c: TransformerConfig) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(c.vocab, c.hidden)
        self.blocks = torch.nn.ModuleList(Block(c) for _ in range(c.layers))
        self.norm = torch.nn.RMSNorm(c.hidden)
        self.head = torch.nn.Linear(c.hidden, c.vocab, bias=False)

    def forward(self, ids):
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def shape(**changes: object) -> TransformerConfig:
    fields: dict[str, object] = {
        "name": "small",
        "family": "llama",
        "layers": 3,
        "hidden": 96,
        "ffn": 160,
        "heads": 6,
        "kv_heads": 2,
        "head_dim": 16,
        "vocab": 320,
        "max_seq": 64,
        "gated": True,
        "activation": "silu",
        "norm": "rmsnorm",
        "position": "rotary",
    }
    return TransformerConfig(**{**fields, **changes})


@pytest.mark.parametrize(
    "config",
    [
        shape(),
        shape(kv_heads=6, gated=False, activation="gelu", qkv_bias=True, ffn_bias=True),
        shape(head_dim=24, out_bias=True),
    ],
    ids=["gated-gqa", "plain-mha-bias", "wide-heads"],
)
def test_counts_are_those_of_pytorch(config):
    """Parameters, forward FLOPs and forward + backward FLOPs equal PyTorch's counter exactly."""
    from torch.utils.flop_counter import FlopCounterMode

    batch, seq_length = 2, 32
    with torch.device("meta"):
        model = Model(config)
        ids = torch.zeros(batch, seq_length, dtype=torch.long)
    assert sum(p.numel() for p in model.parameters()) == parameters(config).total
    with FlopCounterMode(display=False) as counter:
        logits = model(ids)
    forward = counter.get_total_flops()
    assert forward == batch * forward_flop(config, seq_length).total_flop
    with FlopCounterMode(display=False) as counter:
        logits.sum().backward()
    assert forward + counter.get_total_flops() == model_flop(config, seq_length, sequences=batch)
