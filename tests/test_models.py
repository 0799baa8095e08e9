"""Bundled models: counts against published ones, operations against closed forms."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dse.workload import TransformerConfig, list_models, load_model
from dse.workload.counts import (
    forward_flop,
    hardware_flop,
    kv_bytes_per_token,
    model_flop,
    parameters,
)
from dse.workload.zoo import find_model, model_entries
from hwmodels.errors import ConfigError, UnsupportedError

pytestmark = pytest.mark.fast


def _gpt(**changes: object) -> TransformerConfig:
    return load_model("korthikanti-175b").replace(**changes)


@st.composite
def _configs(draw: st.DrawFn, *, moe: bool | None = None) -> TransformerConfig:
    kv_heads = draw(st.integers(1, 8))
    norm = draw(st.sampled_from(["layernorm", "rmsnorm"]))
    experts = {}
    if draw(st.booleans()) if moe is None else moe:
        count = draw(st.integers(1, 64))
        experts = {
            "experts": count,
            "topk": draw(st.integers(1, count)),
            "expert_ffn": draw(st.integers(1, 4096)),
            "shared_expert_ffn": draw(st.sampled_from([0, 512])),
            "router_bias": draw(st.booleans()),
        }
    return TransformerConfig(
        name="drawn",
        family="drawn",
        layers=draw(st.integers(1, 128)),
        hidden=draw(st.integers(1, 16384)),
        ffn=draw(st.integers(1, 65536)),
        heads=kv_heads * draw(st.integers(1, 16)),
        kv_heads=kv_heads,
        head_dim=draw(st.integers(1, 256)),
        vocab=draw(st.integers(1, 260000)),
        max_seq=1 << 20,
        gated=draw(st.booleans()),
        activation="gelu",
        norm=norm,
        norm_bias=norm == "layernorm" and draw(st.booleans()),
        position="rotary",
        qkv_bias=draw(st.booleans()),
        out_bias=draw(st.booleans()),
        ffn_bias=draw(st.booleans()),
        qk_norm=draw(st.booleans()),
        tied_embeddings=draw(st.booleans()),
        head_bias=draw(st.booleans()),
        embedding_norm=draw(st.booleans()),
        sliding_window=draw(st.none() | st.integers(1, 5000)),
        **experts,
    )


@pytest.mark.parametrize("name", list_models())
def test_count_equals_the_published_one(name: str) -> None:
    """An exact published count is met to the last digit, a rounded one after rounding alike."""
    entry = find_model(name)
    total = parameters(load_model(name)).total
    published = entry.published_params
    assert published is not None
    if entry.exact:
        assert total - published == entry.deviation
        assert bool(entry.deviation) == bool(entry.deviation_reason)
        return
    unit = 10 ** (len(str(published)) - len(str(published).rstrip("0")))
    rounds = (total + unit // 2) // unit * unit == published
    assert rounds != bool(entry.deviation_reason)


def test_the_only_deviations_are_the_padding_rows_of_opt() -> None:
    """A preset without OPT's two padding positions counts 2 h less, and nothing else deviates."""
    deviating = {e.name: e.deviation for e in model_entries().values() if e.deviation}
    assert deviating == {"opt-125m": 2 * 768, "opt-1.3b": 2 * 2048}


@pytest.mark.parametrize(
    ("name", "non_embedding"),
    [
        ("pythia-70m", 18_915_328),
        ("pythia-160m", 85_056_000),
        ("pythia-410m", 302_311_424),
        ("pythia-1b", 805_736_448),
        ("pythia-6.9b", 6_444_163_072),
        ("pythia-12b", 11_327_027_200),
    ],
)
def test_non_embedding_is_what_pythia_prints(name: str, non_embedding: int) -> None:
    """The count without embeddings equals arXiv:2304.01373 Table 1."""
    assert parameters(load_model(name)).non_embedding == non_embedding


def test_gpt3_counts_for_both_vocabularies() -> None:
    """96 (12 h^2 + 13 h) + V h + 2048 h + 2 h with h = 12288, V padded and not."""
    blocks = 96 * (12 * 12288**2 + 13 * 12288)
    assert blocks == 96 * 1_812_099_072
    padded = parameters(_gpt())
    assert padded.total == blocks + (51200 + 2048 + 2) * 12288 == 174_615_846_912
    assert parameters(_gpt(vocab=50257)).total == 174_604_259_328
    assert load_model("gpt3-175b").vocab == 50257


def test_bert_large_shaped_layer() -> None:
    """12 h^2 + 13 h at h = 1024: 12,582,912 + 13,312 parameters, 48.05 MiB in fp32."""
    block = parameters(_gpt(hidden=1024, ffn=4096, heads=16, kv_heads=16, head_dim=64)).block
    assert block.total == 12_596_224
    assert round(block.total * 4 / 2**20, 2) == 48.05


def test_active_parameters_of_mixtral() -> None:
    """Two of eight experts: 46,702,792,704 less 32 layers x 6 experts x 3 x 4096 x 14336."""
    count = parameters(load_model("mixtral-8x7b"))
    assert count.active == 46_702_792_704 - 32 * 6 * 3 * 4096 * 14336 == 12_879_925_248


def test_key_value_bytes_follow_the_key_value_heads() -> None:
    """2 x 80 layers x 8 heads x 128 x 2 bytes = 327,680 a token, not with the 64 query heads."""
    assert kv_bytes_per_token(load_model("llama-3-70b")) == 327_680


def test_gated_layer_flop_uses_the_real_width() -> None:
    """2 (4 h^2 + 3 h f) = 404.8 MFLOP a token at h 4096, f 11008, not the 4 h of a GPT."""
    flop = forward_flop(load_model("llama-2-7b"), 1).layer_linear_flop
    assert flop == 2 * (4 * 4096**2 + 3 * 4096 * 11008) == 404_750_336


def test_attention_flop_states_its_convention() -> None:
    """12 b L s^2 h = 422.2 TFLOP in full square and 211.1 causal: b 4, L 32, s 8192, h 4096."""
    model = load_model("llama-2-7b")
    full, causal = (
        3 * 4 * 32 * forward_flop(model, 8192, convention=convention).layer_attention_flop
        for convention in ("full", "causal")
    )
    assert full == 12 * 4 * 32 * 8192**2 * 4096 == 422_212_465_065_984
    assert causal * 2 == full


def test_hand_solved_steps() -> None:
    """Operations of a GPT-3 step of 1,536 x 2,048 tokens and a Llama-3-8B one of 64 x 8,192."""
    # forward of one sequence: 96 (24 s h^2 + 4 s^2 h) + 2 s h V = 734,851,724,476,416
    gpt = _gpt()
    assert forward_flop(gpt, 2048).total_flop == 734_851_724_476_416
    assert model_flop(gpt, 2048, sequences=1536) == 3_386_196_746_387_324_928
    selective = {"sequences": 1536, "recompute": "selective"}
    assert hardware_flop(gpt, 2048, **selective) == 3_416_596_043_872_075_776
    assert hardware_flop(gpt, 2048, convention="causal", **selective) == 3_355_797_448_902_574_080
    assert model_flop(gpt, 2048, sequences=1536, convention="causal") == 3_340_597_800_160_198_656
    llama = load_model("llama-3-8b")
    assert model_flop(llama, 8192, sequences=64) == 30_363_013_601_034_240
    assert model_flop(llama, 8192, sequences=64, convention="causal") == 26_985_313_880_506_368


@given(st.integers(1, 64), st.integers(1, 8), st.integers(1, 4096), st.integers(1, 100_000))
def test_closed_forms_of_a_gpt(layers: int, heads: int, s: int, vocab: int) -> None:
    """Model and hardware operations equal the closed forms of SC21 and K22, full square."""
    h = 64 * heads
    gpt = _gpt(
        layers=layers, hidden=h, ffn=4 * h, heads=heads, kv_heads=heads, head_dim=64, vocab=vocab
    )
    # 72 L s h^2 (1 + s/(6h) + V/(12 h L)), times out to integers; K22 appendix A
    assert (
        model_flop(gpt, s) == 72 * layers * s * h**2 + 12 * layers * s**2 * h + 6 * s * h * vocab
    )
    # 96 L s h^2 (1 + s/(6h) + V/(16 h L)); SC21 eq. 3
    full = 96 * layers * s * h**2 + 16 * layers * s**2 * h + 6 * s * h * vocab
    assert hardware_flop(gpt, s, recompute="full") == full
    # 72 L s h^2 (1 + 2s/(9h) + V/(12 h L))
    selective = 72 * layers * s * h**2 + 16 * layers * s**2 * h + 6 * s * h * vocab
    assert hardware_flop(gpt, s, recompute="selective") == selective
    assert hardware_flop(gpt, s) == model_flop(gpt, s)


@given(_configs(), st.integers(1, 10_000))
def test_parts_sum_to_totals(config: TransformerConfig, s: int) -> None:
    """Parameters and operations are the sum of their parts, and active never exceeds total."""
    count, flop = parameters(config), forward_flop(config, s)
    block = count.block
    assert block.total == (
        block.attention + block.feed_forward + block.router + block.experts + block.norms
    )
    ends = count.token_embedding + count.position_embedding + count.final_norm + count.head
    assert count.total == config.layers * block.total + ends
    assert count.total == count.embedding + count.non_embedding
    assert 0 < count.active <= count.total
    assert flop.total_flop == flop.head_flop + config.layers * (
        flop.layer_linear_flop + flop.layer_attention_flop
    )


@given(_configs(moe=False))
def test_gate_adds_one_matrix(config: TransformerConfig) -> None:
    """A gated feed-forward part has one h x f matrix more, and its bias if there are any."""
    plain, gated = (parameters(config.replace(gated=gated)).block for gated in (False, True))
    bias = config.ffn if config.ffn_bias else 0
    assert gated.total - plain.total == config.hidden * config.ffn + bias


@given(_configs(moe=True), st.integers(1, 100))
def test_experts_scale(config: TransformerConfig, more: int) -> None:
    """Each further expert adds itself and its router column; only the column is visited."""
    one = parameters(config)
    other = parameters(config.replace(experts=config.experts + more))
    column = config.hidden + (1 if config.router_bias else 0)
    assert other.total - one.total == config.layers * more * (one.block.expert + column)
    assert other.active - one.active == config.layers * more * column


@given(_configs(), st.integers(1, 10_000), st.integers(1, 100))
def test_operations_are_linear_in_sequences(config: TransformerConfig, s: int, n: int) -> None:
    """n sequences cost n times one, and recomputing more never costs less."""
    assert model_flop(config, s, sequences=n) == n * model_flop(config, s)
    none, some, full = (
        hardware_flop(config, s, recompute=recompute)
        for recompute in ("none", "selective", "full")
    )
    assert none <= some <= full <= none * 4 // 3


@given(_configs(), st.integers(2, 10_000), st.data())
def test_causal_is_half_and_a_window_never_more(
    config: TransformerConfig, s: int, data: st.DataObject
) -> None:
    """Causal attention is half the square; a narrower window never counts more."""
    wide = config.replace(sliding_window=None)
    full = forward_flop(wide, s).layer_attention_flop
    causal = forward_flop(wide, s, convention="causal").layer_attention_flop
    assert 2 * causal == full
    w = data.draw(st.integers(2, s))
    windows = [
        forward_flop(
            wide.replace(sliding_window=size), s, convention="causal"
        ).layer_attention_flop
        for size in (w - 1, w)
    ]
    assert windows[0] <= windows[1] <= causal


def test_window_counts_its_pairs() -> None:
    """s 8, w 3: queries see 1, 2, 3, 3, 3, 3, 3, 3 keys, 21 pairs of 4 a d operations each."""
    model = load_model("mistral-7b").replace(sliding_window=3)
    flop = forward_flop(model, 8, convention="causal").layer_attention_flop
    assert flop == 4 * 21 * 32 * 128


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda m: forward_flop(m, 0), "seq_length"),
        (lambda m: forward_flop(m, 8.0), "seq_length"),
        (lambda m: forward_flop(m, 8, convention="half"), "convention"),
        (lambda m: model_flop(m, 8, sequences=-1), "sequences"),
        (lambda m: hardware_flop(m, 8, recompute="some"), "recompute"),
    ],
)
def test_counts_refuse_bad_arguments(call: object, field: str) -> None:
    """A wrong argument is named."""
    with pytest.raises(ConfigError) as caught:
        call(load_model("gpt2"))  # type: ignore[operator]
    assert caught.value.field == field


@pytest.mark.parametrize(
    "spelling",
    ["llama-3-70b", "llama3-70b", "LLAMA_3_70B", "Llama 3.70b", "meta-llama-3-70b"],
)
def test_spelling_does_not_matter(spelling: str) -> None:
    """Case, dash, dot and underscore are ignored."""
    assert load_model(spelling).name == "llama-3-70b"


def test_every_name_and_alias_finds_its_model() -> None:
    """No name or alias hides another, also where only a dot tells them apart."""
    for entry in model_entries().values():
        for spelling in (entry.name, *entry.aliases, entry.name.upper().replace("-", "_")):
            assert find_model(spelling).name == entry.name
    assert parameters(load_model("opt-13b")).total > 9 * parameters(load_model("opt-1.3b")).total


def test_spelling_that_fits_two_models_is_refused() -> None:
    """opt13b may be opt-1.3b or opt-13b: both are listed."""
    with pytest.raises(ConfigError) as caught:
        load_model("opt13b")
    assert caught.value.allowed == ["opt-1.3b", "opt-13b"]


def test_unknown_name_lists_the_nearest() -> None:
    """A misspelt name is refused with names like it."""
    with pytest.raises(ConfigError, match=r"nearest names: .*llama-3-70b") as caught:
        load_model("lama-3-70b")
    assert not isinstance(caught.value, UnsupportedError)
    assert caught.value.field == "model"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("deepseek-v3", "family deepseek"),
        ("t5-11b", "family t5"),
        ("resnet50", "family cnn"),
        ("net.py:build", "not traced yet"),
        ("folder/net.py", "not traced yet"),
    ],
)
def test_known_but_unmodelled_is_refused_by_name(name: str, says: str) -> None:
    """What is known and not modelled is refused as such, naming what it is."""
    with pytest.raises(UnsupportedError, match=says):
        load_model(name)


def test_bundled_name_wins_over_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder called like a model is reached by ./name; any other existing folder by its name."""
    content = '{"model_type": "gpt2", "n_layer": 1, "n_embd": 8, "n_head": 1, "vocab_size": 9,'
    for folder in ("gpt2", "mine"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "config.json").write_text(content + '"n_positions": 4}')
    monkeypatch.chdir(tmp_path)
    assert load_model("gpt2").layers == 12
    assert load_model(f".{os.sep}gpt2").layers == 1
    assert load_model("mine").name == "mine"
    assert load_model(Path("gpt2")).layers == 1


def test_printed_sizes_become_shapes() -> None:
    """A shape from a paper has its printed dimensions and names its source."""
    model = load_model("megatron-sc21-1t")
    assert (model.layers, model.hidden, model.heads, model.head_dim) == (128, 25600, 160, 160)
    assert (model.ffn, model.vocab, model.position_rows) == (102400, 51200, 2048)
    assert "2104.04473" in model.source
    odd = load_model("gpt3-13b")
    assert (odd.hidden, odd.attention_width) == (5140, 5120)


def _llama(**changes: object) -> TransformerConfig:
    return load_model("llama-3-8b").replace(**changes)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"layers": 0}, "layers"),
        ({"hidden": "4096"}, "hidden"),
        ({"heads": 32.0}, "heads"),
        ({"vocab": True}, "vocab"),
        ({"kv_heads": 5}, "kv_heads"),
        ({"vocab": 10**5000}, "vocab"),
        ({"dropout": float("nan")}, "dropout"),
        ({"dropout": 1.0}, "dropout"),
        ({"norm_bias": True}, "norm_bias"),
        ({"position": "learned"}, "position_rows"),
        ({"position_rows": 8192}, "position_rows"),
        ({"sliding_window": 8192}, "sliding_window"),
        ({"topk": 2}, "topk"),
        ({"experts": 8, "topk": 9, "expert_ffn": 1}, "topk"),
        ({"experts": 8, "topk": 2}, "expert_ffn"),
        ({"activation": "tanh"}, "activation"),
        ({"layer": 3}, "layer"),
    ],
)
def test_inconsistent_shape_is_refused_by_field(changes: dict[str, object], field: str) -> None:
    """Each wrong field is a ConfigError that names it."""
    with pytest.raises(ConfigError) as caught:
        _llama(**changes)
    assert caught.value.field == field


def test_head_width_and_key_value_heads_are_derived() -> None:
    """Left out, they are hidden // heads and heads; a width that is no integer is refused."""
    given = dict(_llama())
    del given["kv_heads"], given["head_dim"]
    model = TransformerConfig(**given)
    assert (model.kv_heads, model.head_dim) == (32, 128)
    with pytest.raises(ConfigError, match="heads 33 does not divide hidden 4096"):
        TransformerConfig(**{**given, "heads": 33})
    assert TransformerConfig(**{**given, "heads": 33, "head_dim": 100}).attention_width == 3300
