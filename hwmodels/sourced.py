"""Values that know where they come from, and a reader of strict YAML sections.

A quantity in a file is text with its unit, `"3.35 TB/s"`, or a mapping that adds provenance:

    memory_rate: {value: "3.35 TB/s", source: "data sheet", date: "2023-03", status: verified}

`source`, `date` and `status` at the top of a file hold for its values that state none. `Section`
reads one mapping: every read names the key and what it must be, and every error names file, line
and field.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, NoReturn, Protocol, cast

from hwmodels import units
from hwmodels.errors import ConfigError
from hwmodels.yamltree import (
    OLD_TRUTH_WORDS,
    Entries,
    Items,
    Node,
    Scalar,
    parse_yaml,
    read_text,
)

Status = Literal["verified", "recalled", "estimated"]
STATUSES = ("verified", "recalled", "estimated")
QUANTITY_KEYS = ("value", "source", "date", "low", "high", "status")
PROVENANCE_KEYS = ("source", "date", "status")
MAX_TEXT = 2000
_DATE = re.compile(r"[0-9]{4}(?:-[0-9]{2}){0,2}")


@dataclass(frozen=True, slots=True)
class Sourced:
    """One number and where it comes from.

    Args:
        value: SI, in the unit that `dimension` names; a plain number if that is empty.
        written: The value as it stands in the file.
        dimension: A key of `hwmodels.units.UNITS`, or empty.
        source: Document, page or rule.
        date: When it was true, `YYYY[-MM[-DD]]`.
        low: Lower end of its range, if known.
        high: Upper end of its range, if known.
        status: `verified` against the source, `recalled` without it, or `estimated` by a rule.
    """

    value: float
    written: str = ""
    dimension: str = ""
    source: str = ""
    date: str = ""
    low: float | None = None
    high: float | None = None
    status: Status = "recalled"

    def __str__(self) -> str:
        if not self.dimension:
            return f"{self.value:.6g}"
        return units.format_quantity(self.value, self.dimension)


@dataclass(frozen=True)
class Section:
    """One mapping of a file, read key by key.

    Args:
        tree: The mapping.
        file: The file's name, for errors.
        path: Dotted name of the section; empty at the top.
        provenance: What values without their own source, date and status inherit.
    """

    tree: Entries
    file: str
    path: str = ""
    provenance: Sourced = field(default_factory=lambda: Sourced(0.0))

    def __contains__(self, key: str) -> bool:
        return key in self.tree.entries

    def __iter__(self) -> Iterator[str]:
        return iter(self.tree.entries)

    def name_of(self, key: str) -> str:
        """The dotted name of a key of this section."""
        return f"{self.path}.{key}" if self.path else key

    def line_of(self, key: str | None = None) -> int:
        """The line of a key, or of the section itself."""
        return self.tree.line if key is None else self.tree.lines.get(key, self.tree.line)

    def refuse(
        self,
        key: str | None,
        message: str,
        *,
        value: object = None,
        allowed: object = None,
        hint: str | None = None,
    ) -> NoReturn:
        """Raise a `ConfigError` that points at a key."""
        name = self.path if key is None else self.name_of(key)
        raise ConfigError(
            f"{name}: {message}" if name else message,
            file=self.file,
            line=self.line_of(key),
            field=name or None,
            value=value,
            allowed=allowed,
            hint=hint,
        )

    def only(self, allowed: Sequence[str], required: Sequence[str] = ()) -> None:
        """Check the keys of the section.

        Raises:
            ConfigError: An unknown key, with the nearest known one, or a missing required key.
        """
        for key in self:
            if key not in allowed:
                near = difflib.get_close_matches(key[:40], allowed, n=1, cutoff=0.6)
                hint = f"did you mean {near[0]!r}?" if near else None
                self.refuse(key, "unknown key", value=key, allowed=sorted(allowed), hint=hint)
        missing = [key for key in required if key not in self]
        if missing:
            self.refuse(None, f"missing {', '.join(missing)}", allowed=sorted(allowed))

    def text(self, key: str, default: str | None = None) -> str:
        """A text value; required without a default."""
        node = self._scalar(key, default is None)
        if node is None:
            return cast(str, default)
        return self._text(key, node)

    def choice(self, key: str, allowed: Sequence[str], default: str | None = None) -> str:
        """A text value out of a closed list."""
        word = self.text(key, default)
        if word not in allowed:
            near = difflib.get_close_matches(word[:40], allowed, n=1, cutoff=0.6)
            hint = f"did you mean {near[0]!r}?" if near else None
            self.refuse(
                key, f"unknown value {word[:40]!r}", value=word, allowed=allowed, hint=hint
            )
        return word

    def texts(self, key: str) -> tuple[str, ...]:
        """A sequence of text values; empty where the key is absent."""
        return tuple(self._text(key, node) for node in self._scalars(key))

    def integer(
        self, key: str, default: int | None = None, *, minimum: int = 1, maximum: int = 10**9
    ) -> int:
        """A whole number within bounds; required without a default."""
        node = self._scalar(key, default is None)
        if node is None:
            return cast(int, default)
        value = node.value
        if node.quoted or isinstance(value, bool) or not isinstance(value, int):
            self.refuse(key, f"{_shown(value)} is not a whole number", value=value)
        if not minimum <= value <= maximum:
            self.refuse(key, f"{_shown(value)} is not within {minimum}..{maximum}", value=value)
        return value

    def number(
        self,
        key: str,
        default: float | None = None,
        *,
        minimum: float = 0.0,
        maximum: float = 1e30,
    ) -> float:
        """A dimensionless number within bounds; required without a default."""
        sourced = self.ratio(key, minimum=minimum, maximum=maximum)
        if sourced is None:
            if default is None:
                self.refuse(None, f"missing {key}")
            return default
        return sourced.value

    def ratio(self, key: str, *, minimum: float = 0.0, maximum: float = 1e30) -> Sourced | None:
        """A dimensionless number with its provenance, or None where the key is absent."""

        def read(where: Section, key: str) -> tuple[float, str]:
            node = where._scalar(key, required=True)
            value = None if node is None or node.quoted else node.value
            if isinstance(value, bool) or not isinstance(value, int | float):
                given = None if node is None else node.value
                where.refuse(key, f"{_shown(given)} is not a number", value=given)
            if not minimum <= value <= maximum:
                where.refuse(
                    key, f"{_shown(value)} is not within {minimum:g}..{maximum:g}", value=value
                )
            return float(value), str(value)

        return self._sourced(key, "", read)

    def flag(self, key: str, default: bool) -> bool:
        """A truth value, `true` or `false`."""
        node = self._scalar(key, required=False)
        if node is None:
            return default
        if not isinstance(node.value, bool):
            self.refuse(
                key,
                f"{_shown(node.value)} is not a truth value",
                value=node.value,
                allowed=["true", "false"],
            )
        return node.value

    def quantity(
        self, key: str, dimension: str, *, required: bool = False, zero: bool = False
    ) -> Sourced | None:
        """A quantity with its unit and provenance, or None where the key is absent.

        Args:
            key: The key.
            dimension: A key of `hwmodels.units.UNITS`.
            required: Refuse a missing key.
            zero: Accept zero.

        Raises:
            UnitError: No unit, an unknown one, or one of another dimension.
            ConfigError: Zero, or a malformed mapping.
        """
        if required and key not in self:
            self.refuse(None, f"missing {key}")

        def read(where: Section, key: str) -> tuple[float, str]:
            node = where._scalar(key, required=True)
            given = None if node is None else node.value
            value = units.parse(
                given,
                dimension,
                file=where.file,
                line=where.line_of(key),
                field=where.name_of(key),
            )
            if value == 0 and not zero:
                where.refuse(key, "zero is not allowed", value=given)
            return value, str(given)

        return self._sourced(key, dimension, read)

    def section(self, key: str) -> Section | None:
        """A nested mapping, or None where the key is absent."""
        node = self.tree.entries.get(key)
        if node is None:
            return None
        if not isinstance(node, Entries):
            self.refuse(key, "is not a mapping of keys to values")
        return replace(self, tree=node, path=self.name_of(key))

    def sections(self, key: str) -> tuple[Section, ...]:
        """A sequence of mappings; empty where the key is absent."""
        return tuple(
            replace(self, tree=node, path=f"{self.name_of(key)}[{index}]")
            if isinstance(node, Entries)
            else self.refuse(key, f"item {index} is not a mapping of keys to values")
            for index, node in enumerate(self._items(key))
        )

    def inheriting(self) -> Section:
        """The same section, whose values inherit its own `source`, `date` and `status`."""
        return replace(self, provenance=self._provenance())

    def _sourced(self, key: str, dimension: str, read: _Reader) -> Sourced | None:
        node = self.tree.entries.get(key)
        if node is None:
            return None
        if not isinstance(node, Entries):
            value, written = read(self, key)
            return replace(self.provenance, value=value, written=written, dimension=dimension)
        detail = replace(self, tree=node, path=self.name_of(key))
        detail.only(QUANTITY_KEYS, required=("value",))
        value, written = read(detail, "value")
        low = read(detail, "low")[0] if "low" in detail else None
        high = read(detail, "high")[0] if "high" in detail else None
        if (low is not None and low > value) or (high is not None and high < value):
            detail.refuse("value", f"{written} is outside its range low..high", value=written)
        return replace(
            detail._provenance(),
            value=value,
            written=written,
            dimension=dimension,
            low=low,
            high=high,
        )

    def _provenance(self) -> Sourced:
        """What the section states of its origin, the rest inherited.

        A stated source without a stated status counts as verified, no source at all as recalled.
        """
        inherited = self.provenance
        source = self.text("source", inherited.source)
        date = self._date("date") if "date" in self else inherited.date
        status = inherited.status
        if "status" in self:
            status = cast(Status, self.choice("status", STATUSES))
        elif source and not inherited.source:
            status = "verified"
        return replace(inherited, source=source, date=date, status=status)

    def _date(self, key: str) -> str:
        node = self._scalar(key, required=True)
        text = "" if node is None else str(node.value)
        if not _DATE.fullmatch(text):
            self.refuse(key, f"{_shown(text)} is not a date", allowed="YYYY, YYYY-MM, YYYY-MM-DD")
        return text

    def _scalar(self, key: str, required: bool) -> Scalar | None:
        node = self.tree.entries.get(key)
        if node is None:
            if required:
                self.refuse(None, f"missing {key}")
            return None
        if not isinstance(node, Scalar):
            self.refuse(key, "is a nested value where a single one is expected")
        if node.value is None:
            self.refuse(key, "has no value")
        return node

    def _scalars(self, key: str) -> Iterator[Scalar]:
        for index, node in enumerate(self._items(key)):
            if not isinstance(node, Scalar) or node.value is None:
                self.refuse(key, f"item {index} is not a single value")
            yield node

    def _items(self, key: str) -> tuple[Node, ...]:
        node = self.tree.entries.get(key)
        if node is None:
            return ()
        if not isinstance(node, Items):
            self.refuse(key, "is not a sequence")
        return node.items

    def _text(self, key: str, node: Scalar) -> str:
        word = node.value
        if not isinstance(word, str):
            self.refuse(
                key, f"{_shown(word)} is not text", value=word, hint="quote it if it is meant"
            )
        if not node.quoted and word.lower() in OLD_TRUTH_WORDS:
            self.refuse(
                key,
                f"{word} is a truth value to some YAML readers, where text is expected",
                value=word,
                hint=f'write "{word}" in quotes if it is meant',
            )
        if not word.strip():
            self.refuse(key, "is empty")
        if len(word) > MAX_TEXT:
            self.refuse(key, f"is longer than {MAX_TEXT} characters")
        return word


class _Reader(Protocol):
    """A function that reads one value of a section: `(section, key) -> (value, written)`."""

    def __call__(self, where: Section, key: str) -> tuple[float, str]: ...


def load_document(path: str | Path, kinds: Sequence[str]) -> Section:
    """The top section of a YAML file.

    Args:
        path: The file.
        kinds: Accepted values of its `kind:`.

    Raises:
        ConfigError: Missing, not text, too large, not strict YAML, or of another kind.
    """
    file = Path(path)
    return document(read_text(file), str(path), kinds)


def document(text: str, file: str, kinds: Sequence[str]) -> Section:
    """The top section of a YAML text, as `load_document` gives it for a file."""
    top = Section(parse_yaml(text, file), file)
    top.choice("kind", kinds)
    return top.inheriting()


def estimated(value: float, dimension: str, rule: str) -> Sourced:
    """A value that a rule gave because the file is silent."""
    return Sourced(value, dimension=dimension, source=rule, status="estimated")


def _shown(value: object) -> str:
    written = repr(value)
    return written if len(written) <= 42 else written[:38] + "...'"
