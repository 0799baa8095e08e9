"""What the free words of published tables mean: shipped lists of patterns, the first match wins.

`names.yaml` holds chips, machines, precisions, models; `families.yaml` who published a row and
the software that ran; `suspect.yaml` the rows whose stated configuration cannot be right. A word
that nothing matches is never guessed: the caller refuses the row with the word in it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from importlib import resources
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict
from ruamel.yaml import YAML


class Pattern(BaseModel):
    """One line of a list.

    Attributes:
        text: Regular expression, searched in lower case.
        take: What the word means; empty for a word that is known and not modelled.
        style: Conventions that fill what a model's dimensions leave open.
        catalogue: A bundled model.
        by_name: Dimensions do not describe the model; it must be bundled under its name.
        refuse: Why the word cannot be modelled.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    text: str
    take: str = ""
    style: str = ""
    catalogue: str = ""
    by_name: bool = False
    refuse: str = ""


class Family(BaseModel):
    """Sources that belong together, and their software.

    Attributes:
        text: Regular expression, searched in the source in lower case.
        family: Name; empty where the text only tells the software.
        stack: Name of the software stack.
        zero: ZeRO stage where the row does not say.
        sequence_parallel: Whether tp also divides norms and dropout where the row does not say;
            None leaves the plan's rule.
        grad_dtype: Type in which gradients are summed; fp32 if None.
        refuse: Why the software cannot be modelled.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    text: str
    family: str = ""
    stack: str = ""
    zero: int | None = None
    sequence_parallel: bool | None = None
    grad_dtype: Literal["fp32", "bf16", "fp16"] | None = None
    refuse: str = ""


@functools.cache
def document(name: str) -> Mapping[str, Any]:
    """A shipped YAML file of this package as plain values."""
    text = resources.files("dse.validate").joinpath(f"{name}.yaml").read_text(encoding="utf-8")
    loaded: Mapping[str, Any] = YAML(typ="safe", pure=True).load(text)
    return loaded


@functools.cache
def patterns(kind: str) -> tuple[Pattern, ...]:
    """One list of `names.yaml`."""
    return tuple(Pattern(**entry) for entry in document("names")[kind])


def meaning(kind: str, text: str) -> Pattern | None:
    """The first pattern of a list that matches, or None."""
    lowered = text.lower()
    return next((entry for entry in patterns(kind) if re.search(entry.text, lowered)), None)


@functools.cache
def families() -> tuple[Family, ...]:
    """The families in the order in which they are tried."""
    return tuple(Family(**entry) for entry in document("families")["families"])


@functools.cache
def family_of(source: str) -> Family:
    """The family of a source; one of its own where none matches."""
    lowered = source.lower()
    for entry in families():
        if re.search(entry.text, lowered):
            return entry if entry.family else entry.model_copy(update={"family": source})
    return Family(text="", family=source)


@functools.cache
def suspects() -> Mapping[str, str]:
    """Row id to why its stated configuration cannot be right."""
    return {
        identity: entry["reason"]
        for entry in document("suspect")["suspect"]
        for identity in entry["ids"]
    }


def node_of_chip(chip: str) -> str | None:
    """The node that a chip is taken to sit in."""
    found: str | None = document("names")["nodes"].get(chip)
    return found


def style(name: str) -> Mapping[str, Any]:
    """Conventions of a family of models, as fields of `TransformerConfig`."""
    found: Mapping[str, Any] = document("names")["styles"][name]
    return found
