"""A YAML file as a tree of values that know their line, read strictly.

The subset is YAML 1.2 without what makes files ambiguous or dangerous: one document, a mapping at
the top, no duplicate keys, anchors, aliases, merge keys or tags, bounded in size and depth. Plain
scalars follow the 1.2 core schema (https://yaml.org/spec/1.2.2/ section 10.3), so `NO` is text.
The words that YAML 1.1 took for truth values are listed for the reader, which refuses them as
text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hwmodels.errors import ConfigError

MAX_BYTES = 1 << 20
MAX_DEPTH = 32
MAX_VALUES = 50_000
MAX_KEY = 200


@dataclass(frozen=True, slots=True)
class Scalar:
    """One value. `quoted` tells `"72"` from `72`."""

    value: str | int | float | bool | None
    line: int
    quoted: bool = False


@dataclass(frozen=True, slots=True)
class Items:
    """A sequence."""

    items: tuple[Node, ...]
    line: int


@dataclass(frozen=True, slots=True)
class Entries:
    """A mapping with text keys; `lines` holds the line of each key."""

    entries: dict[str, Node]
    lines: dict[str, int]
    line: int


Node = Scalar | Items | Entries

_INT = re.compile(r"[-+]?[0-9]{1,30}")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_WORDS: dict[str, bool | float | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf"), float("inf")),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), float("-inf")),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
}
OLD_TRUTH_WORDS = frozenset({"y", "n", "yes", "no", "on", "off"})
"""Plain words, in any case, that YAML 1.1 read as truth values."""


def read_text(path: Path) -> str:
    """A text file of at most `MAX_BYTES`, UTF-8.

    Raises:
        ConfigError: Missing, unreadable, too large, or not text.
    """
    try:
        with path.open("rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"cannot be read: {reason}", file=str(path)) from None
    if len(raw) > MAX_BYTES:
        raise ConfigError(
            "the file is larger than 1 MiB", file=str(path), hint="is it the right file?"
        )
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ConfigError("the file is not UTF-8 text", file=str(path), line=line) from None
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise ConfigError("the file is not text", file=str(path), line=line)
    return text


def parse_yaml(text: str, file: str) -> Entries:
    """The tree of a YAML document whose top is a mapping.

    Args:
        text: The document.
        file: Its name, for errors.

    Raises:
        ConfigError: Not YAML, or outside the strict subset.
    """
    from ruamel.yaml import YAML  # a caller without files need not pay its import

    events = YAML(typ="safe", pure=True).parse(text)
    try:
        top = _Builder(events, file).document()
    except ConfigError:
        raise
    except Exception as error:  # a parser fed with anything at all may fail in any way
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or getattr(error, "reason", None)
        raise ConfigError(
            f"not valid YAML: {problem or type(error).__name__}",
            file=file,
            line=None if mark is None else mark.line + 1,
        ) from None
    if not isinstance(top, Entries):
        raise ConfigError(
            "the top of the file is not a mapping of keys to values", file=file, line=1
        )
    return top


class _Builder:
    """Builds the tree from parser events, which still show what a constructed document hides."""

    def __init__(self, events: Iterator[Any], file: str) -> None:
        self.events = events
        self.file = file
        self.count = 0

    def document(self) -> Node:
        top: Node | None = None
        for event in self.events:
            kind = type(event).__name__
            if kind == "DocumentStartEvent" and top is not None:
                raise self.refuse("a second document in one file", event)
            if not kind.startswith(("Stream", "Document")):
                top = self.node(event, depth=0)
        if top is None:
            raise ConfigError("the file is empty", file=self.file)
        return top

    def node(self, event: Any, depth: int) -> Node:
        kind = type(event).__name__
        if depth > MAX_DEPTH:
            raise self.refuse(f"nested deeper than {MAX_DEPTH} levels", event)
        self.count += 1
        if self.count > MAX_VALUES:
            raise self.refuse(f"more than {MAX_VALUES} values", event)
        if getattr(event, "anchor", None):
            raise self.refuse(
                "anchors and aliases are not read", event, hint="write the values out"
            )
        tag = getattr(event, "ctag", None) or getattr(event, "tag", None)
        if tag is not None and str(tag) not in ("", "!"):
            raise self.refuse("tags are not read", event, hint="remove the tag")
        line = event.start_mark.line + 1
        if kind == "ScalarEvent":
            quoted = event.style in ("'", '"', "|", ">")
            return Scalar(event.value if quoted else plain_value(event.value), line, quoted)
        if kind == "SequenceStartEvent":
            return Items(tuple(self.sequence(depth)), line)
        return self.mapping(line, depth)

    def sequence(self, depth: int) -> Iterator[Node]:
        for event in self.events:
            if type(event).__name__ == "SequenceEndEvent":
                return
            yield self.node(event, depth + 1)

    def mapping(self, line: int, depth: int) -> Entries:
        entries: dict[str, Node] = {}
        lines: dict[str, int] = {}
        for event in self.events:
            if type(event).__name__ == "MappingEndEvent":
                break
            if not isinstance(self.node(event, depth + 1), Scalar):
                raise self.refuse("a key is not plain text", event)
            key = event.value
            if len(key) > MAX_KEY:
                raise self.refuse(f"a key is longer than {MAX_KEY} characters", event)
            if key == "<<":
                raise self.refuse("merge keys are not read", event, hint="write the values out")
            if key in entries:
                raise self.refuse(
                    f"the key {key!r} appears twice", event, hint=f"first on line {lines[key]}"
                )
            lines[key] = event.start_mark.line + 1
            entries[key] = self.node(next(self.events), depth + 1)
        return Entries(entries, lines, line)

    def refuse(self, message: str, event: Any, hint: str | None = None) -> ConfigError:
        line = event.start_mark.line + 1
        return ConfigError(message, file=self.file, line=line, hint=hint)


def plain_value(text: str) -> str | int | float | bool | None:
    """What an unquoted scalar means in the YAML 1.2 core schema."""
    if text in _WORDS:
        return _WORDS[text]
    if _INT.fullmatch(text):
        return int(text)
    return float(text) if _FLOAT.fullmatch(text) else text
