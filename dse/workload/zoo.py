"""Models by name: published configurations and shapes that come with the package."""

from __future__ import annotations

import csv
import difflib
import functools
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from typing import Any

from dse.workload.config import TransformerConfig, shown
from dse.workload.huggingface import from_config
from hwmodels.errors import ConfigError, UnsupportedError

# What the papers that print only sizes have in common. Megatron's GPT keeps its default dropout.
_STYLES: Mapping[str, Mapping[str, Any]] = {
    "gpt3": {
        "gated": False,
        "activation": "gelu",
        "norm": "layernorm",
        "norm_bias": True,
        "position": "learned",
        "qkv_bias": True,
        "out_bias": True,
        "ffn_bias": True,
        "tied_embeddings": True,
        "dropout": 0.1,
        "attention_dropout": 0.1,
    },
    "pythia": {
        "gated": False,
        "activation": "gelu",
        "norm": "layernorm",
        "norm_bias": True,
        "position": "rotary",
        "qkv_bias": True,
        "out_bias": True,
        "ffn_bias": True,
        "parallel_attention": True,
    },
}


@dataclass(frozen=True)
class ModelEntry:
    """A row of the list of known models.

    Attributes:
        name: The name.
        kind: `config` (a configuration file), `shape` (printed sizes) or `unmodelled`.
        family: Models of one kind of block.
        config_file: The file, for `config`.
        aliases: Other names.
        published_params: The printed number of parameters, if any.
        exact: The printed number is exact, not rounded.
        deviation: Our count less the printed one, where that is exact.
        deviation_reason: Why they differ, or why the printed one is not ours rounded.
        published_source: Where the number is printed.
        config_source: Where the shape was read.
        reconstructed: The file was put together from a paper or another library's table.
        recalled: The printed number was not read again.
        notes: What else a reader should know.
    """

    name: str
    kind: str
    family: str
    config_file: str
    aliases: tuple[str, ...]
    published_params: int | None
    exact: bool
    deviation: int
    deviation_reason: str
    published_source: str
    config_source: str
    reconstructed: bool
    recalled: bool
    notes: str


def load_model(model: str | os.PathLike[str]) -> TransformerConfig:
    """The shape of a bundled model, or of a Hugging Face configuration.

    Args:
        model: A bundled name or alias (case, dash, dot and underscore do not matter), a path that
            ends in `.json`, or a folder that holds a `config.json`. A bundled name wins over a
            folder of that name in the current directory: write `./name` for the folder.

    Returns:
        The shape.

    Raises:
        ConfigError: No model has that name (the nearest are listed), several have, or the
            configuration is wrong.
        UnsupportedError: The model, or a setting of it, is known and not modelled.
    """
    text = os.fspath(model)
    if not isinstance(model, str) or text.endswith(".json"):
        return from_config(model)
    if re.search(r"\.py(:|$)", text):
        raise UnsupportedError(
            f"{shown(text)}: PyTorch modules are not traced yet",
            field="model",
            value=text,
            allowed="a bundled name, or the path of a config.json",
        )
    if "/" in text or os.sep in text:
        return from_config(text)
    try:
        return _load(find_model(text))
    except UnsupportedError:
        raise
    except ConfigError:
        if _is_folder(text):
            return from_config(text)
        raise


def list_models() -> tuple[str, ...]:
    """The names that `load_model` knows and models, in alphabetical order."""
    return tuple(sorted(name for name, e in model_entries().items() if e.kind != "unmodelled"))


def find_model(name: str) -> ModelEntry:
    """The entry of a bundled model, modelled or not.

    Args:
        name: A name or alias, case, dash, dot and underscore ignored.

    Returns:
        The entry.

    Raises:
        ConfigError: Nothing has that name, or several models have.
    """
    entries, spellings = model_entries(), _spellings()
    exact = spellings.get(_loose(name))
    if exact is not None:
        return entries[exact]
    found = sorted({full for spelt, full in spellings.items() if _bare(spelt) == _bare(name)})
    if len(found) == 1:
        return entries[found[0]]
    if found:
        # Without its dot opt-1.3b reads like opt-13b, so such a spelling decides nothing.
        raise ConfigError(
            f"model {shown(name)} may be any of several", field="model", value=name, allowed=found
        )
    near = _nearest(name, spellings)
    raise ConfigError(
        f"unknown model {shown(name)}",
        field="model",
        value=shown(name),
        allowed="a bundled name, or the path of a config.json",
        hint=f"nearest names: {', '.join(near)}" if near else None,
    )


@functools.cache
def model_entries() -> Mapping[str, ModelEntry]:
    """Every known model by name, in the order of the file."""
    return MappingProxyType({row["name"]: _entry(row) for row in _rows("models.csv")})


def _load(entry: ModelEntry) -> TransformerConfig:
    if entry.kind == "unmodelled":
        raise UnsupportedError(
            f"model {entry.name} is of the family {entry.family}, which is not modelled",
            field="model",
            value=entry.name,
            allowed=sorted({e.family for e in model_entries().values() if e.kind != "unmodelled"}),
        )
    if entry.kind == "config":
        file = resources.files("dse.workload").joinpath("models", *entry.config_file.split("/"))
        with resources.as_file(file) as path:
            return from_config(path, name=entry.name, source=entry.config_source)
    return _from_shape(entry)


def _from_shape(entry: ModelEntry) -> TransformerConfig:
    row = next(row for row in _rows("shapes.csv") if row["name"] == entry.name)
    style = _STYLES[row["style"]]
    sizes = {key: int(value) for key, value in row.items() if key not in ("name", "style")}
    fields: dict[str, Any] = {**style, **sizes}
    return TransformerConfig(
        name=entry.name,
        family=entry.family,
        ffn=4 * sizes["hidden"],  # in all the papers
        position_rows=sizes["max_seq"] if style["position"] == "learned" else 0,
        source=entry.config_source,
        **fields,
    )


def _entry(row: Mapping[str, str]) -> ModelEntry:
    return ModelEntry(
        name=row["name"],
        kind=row["kind"],
        family=row["family"],
        config_file=row["config_file"],
        aliases=tuple(row["aliases"].split()),
        published_params=int(row["published_params"]) if row["published_params"] else None,
        exact=row["exact"] == "exact",
        deviation=int(row["deviation"] or 0),
        deviation_reason=row["deviation_reason"],
        published_source=row["published_source"],
        config_source=row["config_source"],
        reconstructed=row["reconstructed"] == "yes",
        recalled=row["recalled"] == "yes",
        notes=row["notes"],
    )


def _rows(file: str) -> list[dict[str, str]]:
    text = resources.files("dse.workload").joinpath("models", file).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


@functools.cache
def _spellings() -> Mapping[str, str]:
    """Every name and alias, in lower case with dashes, to the name it stands for."""
    return MappingProxyType(
        {
            _loose(spelling): entry.name
            for entry in model_entries().values()
            for spelling in (entry.name, *entry.aliases)
        }
    )


def _loose(name: str) -> str:
    return name.strip().lower().replace("_", "-")


def _bare(name: str) -> str:
    return re.sub(r"[-_.\s]", "", name.lower())


def _nearest(name: str, spellings: Iterable[str]) -> list[str]:
    bare = {_bare(spelling): spelling for spelling in spellings}
    near = difflib.get_close_matches(_bare(name[:80]), bare, n=5, cutoff=0.6)
    return [bare[match] for match in near]


def _is_folder(text: str) -> bool:
    try:
        return Path(text).is_dir()
    except (OSError, ValueError):
        return False
