"""Reading config.json: what each kind means, and what bad files are told."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dse.workload import huggingface, load_model
from dse.workload.counts import parameters
from dse.workload.huggingface import MAX_FILE_BYTES, from_config
from dse.workload.kinds import KINDS
from hwmodels.errors import ConfigError, UnsupportedError

pytestmark = pytest.mark.fast

BUNDLED = Path(huggingface.__file__).parent / "models" / "hf"


def _bundled(name: str) -> dict[str, Any]:
    return json.loads((BUNDLED / f"{name}.json").read_text(encoding="utf-8"))


def _refused(config: object) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        from_config(config)  # type: ignore[arg-type]
    return caught.value


def _write(tmp_path: Path, content: str | bytes) -> Path:
    path = tmp_path / "config.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_every_kind_has_a_bundled_example() -> None:
    """Each modelled architecture is met by a published configuration."""
    seen = {json.loads(path.read_text())["model_type"] for path in BUNDLED.glob("*.json")}
    assert seen == set(KINDS)


def test_path_folder_and_mapping_agree(tmp_path: Path) -> None:
    """The file, its folder and its content give the same shape; the folder gives the name."""
    content = _bundled("llama-3-8b")
    folder = tmp_path / "my-model"
    folder.mkdir()
    path = folder / "config.json"
    path.write_text(json.dumps(content))
    by_path, by_folder = from_config(path), from_config(str(folder))
    assert by_path == by_folder == load_model(path) == load_model(f"{folder}{os.sep}")
    assert by_path.name == "my-model"
    assert from_config(content, name="my-model", source=str(path)) == by_path
    assert from_config(content).name == "llama"


def test_defaults_of_an_absent_key() -> None:
    """An absent key means what the architecture's own class takes for it."""
    llama = _bundled("llama-2-7b")
    del llama["num_key_value_heads"], llama["tie_word_embeddings"]
    model = from_config(llama)
    assert (model.kv_heads, model.tied_embeddings, model.qkv_bias) == (32, False, False)
    gpt2 = from_config(_bundled("gpt2"))
    assert (gpt2.ffn, gpt2.tied_embeddings, gpt2.dropout) == (4 * 768, True, 0.1)
    assert (gpt2.position_rows, gpt2.kv_heads, gpt2.head_dim) == (1024, 12, 64)
    opt = from_config(_bundled("opt-125m"))
    assert (opt.position_rows, opt.activation, opt.dropout) == (2050, "relu", 0.1)
    neox = from_config(_bundled("gpt-neox-20b"))
    assert (neox.parallel_attention, neox.qkv_bias, neox.dropout) == (True, True, 0.0)


def test_null_means_derive_it() -> None:
    """null for a derived key is the same as leaving the derivation to the architecture."""
    content = {**_bundled("mistral-7b"), "num_key_value_heads": None, "head_dim": None}
    model = from_config(content)
    assert (model.kv_heads, model.head_dim) == (32, 128)
    assert from_config({**_bundled("gpt2"), "n_inner": None}).ffn == 3072


def test_biases_follow_their_keys() -> None:
    """attention_bias adds (a + 2k) d + h a layer to a Llama, mlp_bias 2 f + h."""
    content = _bundled("llama-3-8b")
    plain = parameters(from_config(content)).block.total
    attention = parameters(from_config({**content, "attention_bias": True})).block.total
    feed_forward = parameters(from_config({**content, "mlp_bias": True})).block.total
    assert attention - plain == (32 + 2 * 8) * 128 + 4096
    assert feed_forward - plain == 2 * 14336 + 4096


def test_dtype_and_unknown_keys_change_nothing() -> None:
    """Keys that change neither shape nor cost are passed over."""
    content = _bundled("qwen2-7b")
    other = {**content, "torch_dtype": 7, "dtype": "float8", "rope_theta": "long", "note": [1]}
    assert from_config(other) == from_config(content)


@pytest.mark.parametrize(
    ("base", "changes", "window"),
    [
        ("mistral-7b", {}, 4096),
        ("mistral-7b", {"sliding_window": None}, None),
        ("mistral-7b", {"use_sliding_window": False}, None),
        ("mistral-7b", {"max_position_embeddings": 4096}, None),
        ("mistral-7b", {"layer_types": ["full_attention"] * 32}, None),
        ("mistral-7b", {"layer_types": ["sliding_attention"] * 32}, 4096),
        ("qwen2-7b", {"sliding_window": 1024}, None),
        ("qwen2-7b", {"sliding_window": 1024, "use_sliding_window": True}, None),
        (
            "qwen2-7b",
            {"sliding_window": 1024, "use_sliding_window": True, "max_window_layers": 0},
            1024,
        ),
        ("llama-3-8b", {"sliding_window": 1024}, None),
    ],
)
def test_window_counts_where_it_binds(
    base: str, changes: dict[str, Any], window: int | None
) -> None:
    """A window counts if the architecture has one, it is on, and it is shorter than max_seq."""
    assert from_config({**_bundled(base), **changes}).sliding_window == window


@pytest.mark.parametrize(
    ("base", "changes", "says"),
    [
        ("llama-3-8b", {"model_type": "deepseek_v3", "architectures": None}, "'deepseek_v3'"),
        ("llama-3-8b", {"model_type": "gemma2"}, "'gemma2'"),
        ("llama-3-8b", {"model_type": "t5"}, "'t5'"),
        ("llama-3-8b", {"model_type": "bert"}, "'bert'"),
        ("llama-3-8b", {"architectures": ["LlamaForSequenceClassification"]}, "Classification"),
        ("llama-3-8b", {"hidden_act": "tanh"}, "'tanh'"),
        ("llama-3-8b", {"is_encoder_decoder": True}, "encoder"),
        ("opt-125m", {"word_embed_proj_dim": 512}, "embedding of another width"),
        ("opt-125m", {"do_layer_norm_before": False}, "norms after"),
        ("opt-125m", {"_remove_final_layer_norm": True}, "no final norm"),
        ("qwen3-30b-a3b", {"decoder_sparse_step": 2}, "dense layers in between"),
        ("qwen3-30b-a3b", {"mlp_only_layers": [0]}, "dense layers in between"),
        ("qwen3-30b-a3b", {"shared_expert_intermediate_size": 64}, "shared experts"),
        ("qwen2-7b", {"use_sliding_window": True, "max_window_layers": 3}, "some layers only"),
        (
            "qwen3-8b",
            {"layer_types": ["full_attention"] * 35 + ["sliding_attention"]},
            "full_attention, sliding_attention",
        ),
        ("gpt2", {"add_cross_attention": True}, "cross attention"),
        ("starcoder2-7b", {"mlp_type": "gated"}, "another MLP"),
    ],
)
def test_unmodelled_setting_is_refused_by_name(
    base: str, changes: dict[str, Any], says: str
) -> None:
    """What the file asks for and is not modelled is named, never approximated."""
    error = _refused({**_bundled(base), **changes})
    assert isinstance(error, UnsupportedError)
    assert says in str(error)
    assert error.field in changes


def test_unknown_architecture_lists_the_modelled_ones() -> None:
    """The refusal says what would have been accepted."""
    error = _refused({"model_type": "mamba", "architectures": ["MambaForCausalLM"]})
    assert "MambaForCausalLM" in str(error)
    assert all(kind in str(error) for kind in KINDS)


@pytest.mark.parametrize(
    "value", ["32", 32.5, 1e9, -1, 0, True, [32], {}, pytest.param(10**5000, id="giant")]
)
def test_wrong_integer_is_named(value: object) -> None:
    """A text, fraction, float, negative number, truth value or giant is no number of layers."""
    error = _refused({**_bundled("llama-3-8b"), "num_hidden_layers": value})
    assert "num_hidden_layers" in str(error)
    assert error.field == "num_hidden_layers"
    assert len(str(error)) < 300


@pytest.mark.parametrize(
    ("base", "changes", "field"),
    [
        ("llama-3-8b", {"attention_bias": "yes"}, "attention_bias"),
        ("llama-3-8b", {"tie_word_embeddings": 1}, "tie_word_embeddings"),
        ("llama-3-8b", {"attention_dropout": "0.1"}, "attention_dropout"),
        ("llama-3-8b", {"attention_dropout": float("nan")}, "attention_dropout"),
        ("llama-3-8b", {"attention_dropout": 1.5}, "attention_dropout"),
        ("llama-3-8b", {"hidden_act": 3}, "hidden_act"),
        ("llama-3-8b", {"num_key_value_heads": 5}, "num_key_value_heads"),
        ("llama-3-8b", {"num_attention_heads": 33, "num_key_value_heads": 11}, None),
        ("llama-3-8b", {"model_type": 3}, "model_type"),
        ("llama-3-8b", {"model_type": None}, "model_type"),
        ("llama-3-8b", {"architectures": "LlamaForCausalLM"}, "architectures"),
        ("llama-3-8b", {"num_key_value_head": 8}, None),
        ("mixtral-8x7b", {"num_experts_per_tok": 9}, "num_experts_per_tok"),
        ("mistral-7b", {"sliding_window": -4}, "sliding_window"),
        ("mistral-7b", {"sliding_window": "4096"}, "sliding_window"),
        ("qwen2-7b", {"use_sliding_window": "no"}, "use_sliding_window"),
        ("qwen3-8b", {"layer_types": ["full_attention"]}, "layer_types"),
    ],
)
def test_wrong_value_names_its_key(base: str, changes: dict[str, Any], field: str | None) -> None:
    """The key of the file is named, not the field that it becomes."""
    content = {**_bundled(base), **changes}
    if "num_key_value_head" in changes:
        del content["num_key_value_heads"]
        error = _refused(content)
        assert error.hint == "did you mean num_key_value_heads?"
        return
    error = _refused(content)
    assert not isinstance(error, UnsupportedError)
    assert error.field == (field or "num_attention_heads")


@pytest.mark.parametrize("key", ["hidden_size", "num_hidden_layers", "vocab_size"])
def test_missing_key_names_key_and_file(tmp_path: Path, key: str) -> None:
    """A key that no default covers is asked for by name."""
    content = _bundled("llama-3-8b")
    del content[key]
    path = _write(tmp_path, json.dumps(content))
    error = _refused(path)
    assert (error.field, error.file) == (key, str(path))
    assert f"{key} is missing" in str(error)


def test_wrong_value_names_its_line(tmp_path: Path) -> None:
    """The line of a key is told where it stands once in the file."""
    text = (BUNDLED / "llama-3-70b.json").read_text().replace('"vocab_size": ', '"vocab_size": -')
    error = _refused(_write(tmp_path, text))
    line = next(n for n, row in enumerate(text.splitlines(), 1) if "vocab_size" in row)
    assert error.line == line
    assert error.value == -128256


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ('{"model_type": "llama",}', "not JSON"),
        ("[1, 2]", "an object of keys and values"),
        ("3", "an object of keys and values"),
        ('{"a": NaN}', "NaN is not JSON"),
        ('{"a": -Infinity}', "-Infinity is not JSON"),
        ('{"a": 1, "a": 2}', "'a' occurs twice"),
        ('{"b": {"a": 1, "a": 2}}', "'a' occurs twice"),
        (b'{"a": "\xff"}', "not UTF-8"),
        ('{"a": 1}'.encode("utf-16"), "not UTF-8"),
        (b"\x00\x01\x02", "not JSON"),
        ("[" * 100_000, "nested too deeply"),
        ('{"a": ' + "9" * 10_000 + "}", "too many digits"),
        (b" " * (MAX_FILE_BYTES + 1), "too long"),
        (b"x" * 10_000_000, "too long"),
    ],
    ids=lambda part: part if isinstance(part, str) and " " in part and len(part) < 40 else "",
)
def test_unreadable_file_is_named(tmp_path: Path, content: str | bytes, says: str) -> None:
    """Whatever the bytes are, the file is named and the reason is one sentence."""
    path = _write(tmp_path, content)
    error = _refused(path)
    assert says in str(error)
    assert error.file == str(path)
    assert len(str(error)) < 300 + len(str(path))


def test_not_json_tells_the_line(tmp_path: Path) -> None:
    """The parser's own line is passed on."""
    assert _refused(_write(tmp_path, '{\n"a": 1,\n"b": ?\n}')).line == 3


@pytest.mark.parametrize("name", ["absent.json", "", "with\0null.json", "x" * 5000 + ".json"])
def test_missing_file_is_named(tmp_path: Path, name: str) -> None:
    """No path, whatever its spelling, ends in anything but a ConfigError."""
    error = _refused(tmp_path / name)
    assert "config.json" in str(error) or "absent" in str(error)
    assert error.field == "model"


def test_special_file_is_refused() -> None:
    """A device is not read, however long it would go on."""
    assert "not a regular file" in str(_refused("/dev/zero"))


def _mutated(text: str, rng: random.Random) -> str:
    words = ["null", "true", "-1", "0", "1e9", "1e999", '"32"', "NaN", "[]", "{}", "9" * 40, '"']
    words += ['"num_key_value_heads": 3,', '"layer_types": ["full_attention"],', "\\ud800", "\0"]
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(text) + 1)
        match rng.randrange(4):
            case 0:
                text = text[:at] + text[at + rng.randint(1, 20) :]
            case 1:
                text = text[:at] + rng.choice(words) + text[at:]
            case 2:
                text = text[:at] + chr(rng.randrange(1, 0x250)) + text[at + 1 :]
            case _:
                lines = text.splitlines()
                row = rng.randrange(len(lines)) if lines else 0
                if lines and ":" in lines[row]:
                    key = lines[row].split(":")[0]
                    lines[row] = f"{key}: {rng.choice(words)},"
                text = "\n".join(lines)
    return text


@settings(max_examples=100)
@given(
    name=st.sampled_from(sorted(path.stem for path in BUNDLED.glob("*.json"))),
    seed=st.integers(0, 2**32),
)
def test_mutated_text_never_escapes_as_another_error(
    tmp_path_factory: pytest.TempPathFactory, name: str, seed: int
) -> None:
    """A damaged file is read as a valid shape or refused with a message, never a traceback."""
    text = _mutated((BUNDLED / f"{name}.json").read_text(), random.Random(seed))
    path = tmp_path_factory.getbasetemp() / "mutated.json"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    try:
        model = from_config(path)
    except ConfigError as error:
        json.dumps(error.as_dict())
    else:
        assert parameters(model).total > 0


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=4,
)


@settings(max_examples=100)
@given(
    name=st.sampled_from(sorted(path.stem for path in BUNDLED.glob("*.json"))),
    data=st.data(),
)
def test_any_value_under_any_key_is_read_or_refused(name: str, data: st.DataObject) -> None:
    """A value of any type under any key that is read gives a shape or a ConfigError."""
    content = _bundled(name)
    read = sorted(KINDS[content["model_type"]].keys() | {"model_type", "architectures"})
    extra = ["layer_types", "max_window_layers", "is_encoder_decoder", "use_sliding_window"]
    key = data.draw(st.sampled_from(read + extra))
    try:
        model = from_config({**content, key: data.draw(_JSON)})
    except ConfigError as error:
        json.dumps(error.as_dict())
    else:
        assert parameters(model).total > 0
