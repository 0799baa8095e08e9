"""Read a transformer's shape from a Hugging Face `config.json`, without that library or a network.

What the file asks for and the package does not model is refused by name; keys that change neither
shape nor cost, such as `torch_dtype`, are passed over.
"""

from __future__ import annotations

import difflib
import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from dse.workload.config import TransformerConfig, shown
from dse.workload.kinds import ACTIVATIONS, KINDS, Absent, Key, Kind, Window
from hwmodels.errors import ConfigError, UnsupportedError

# Published files have a few KB; quantised ones that list their layers stay below 100 KB.
MAX_FILE_BYTES = 1 << 20

_EXPECTED = {
    "integer": "a positive integer",
    "number": "a number",
    "boolean": "true or false",
    "activation": tuple(ACTIVATIONS),
}


def from_config(
    config: str | os.PathLike[str] | Mapping[str, Any],
    *,
    name: str | None = None,
    source: str | None = None,
) -> TransformerConfig:
    """The shape that a `config.json` describes.

    Args:
        config: The file, a folder that holds a `config.json`, or the parsed content.
        name: What to call the model; the folder or the file if left out.
        source: Where the shape was read; the path if left out.

    Returns:
        The shape.

    Raises:
        ConfigError: The file is missing, too long or not JSON; a key is missing, misspelt, of the
            wrong type, or contradicts another one. File, line and key are named where known.
        UnsupportedError: The architecture, or a setting of it, is not modelled.
    """
    if isinstance(config, Mapping):
        reader = _Reader(raw=config, file=None, text="")
    else:
        path = _locate(config)
        text = _read(path)
        reader = _Reader(raw=_parse(text, str(path)), file=str(path), text=text)
        stem = path.parent.name if path.name == "config.json" else path.stem
        name, source = name or stem, source or str(path)
    return reader.transformer(name, source or "")


@dataclass(frozen=True)
class _Reader:
    """One parsed file: finds keys, and says where they stand when they are wrong."""

    raw: Mapping[str, Any]
    file: str | None
    text: str

    def transformer(self, name: str | None, source: str) -> TransformerConfig:
        kind = self._kind()
        self._check_spelling(kind)
        fields: dict[str, Any] = {}
        for field, rule in kind.fields.items():
            value = self._value(rule, fields) if isinstance(rule, Key) else rule
            if callable(value):
                value = value(fields)
            if value is not Absent.OMIT:
                fields[field] = value
        for refusal in kind.refusals:
            if refusal.key in self.raw and not refusal.harmless(self.raw[refusal.key], fields):
                self._unsupported(refusal.key, f"{refusal.reason} in {kind.architecture}")
        fields["sliding_window"] = self._window(kind, fields)
        fields.update(name=name or kind.model_type, family=kind.model_type, source=source)
        try:
            return TransformerConfig(**fields)
        except ConfigError as error:
            key = self._key_of(kind, error.field)
            self._wrong(f"{key}: {error.message}", key, error.value, error.allowed)

    def _kind(self) -> Kind:
        model_type = self.raw.get("model_type")
        if model_type is None:
            self._wrong("model_type is missing", "model_type", None, tuple(KINDS))
        if not isinstance(model_type, str):
            self._wrong(
                f"model_type is {shown(model_type)}", "model_type", model_type, tuple(KINDS)
            )
        architecture = self._architecture()
        kind = KINDS.get(model_type)
        if kind is None:
            told = f" ({shown(architecture)})" if architecture else ""
            self._unsupported(
                "model_type", f"architecture {shown(model_type)}{told}", tuple(KINDS)
            )
        if architecture is not None and architecture != kind.architecture:
            # Another class of the same model has another head, or other blocks altogether.
            self._unsupported(
                "architectures",
                f"architecture {shown(architecture)} of model_type {model_type}",
                kind.architecture,
            )
        if self.raw.get("is_encoder_decoder"):
            self._unsupported("is_encoder_decoder", "an encoder beside the decoder")
        return kind

    def _architecture(self) -> str | None:
        listed = self.raw.get("architectures")
        if listed is None or listed == []:
            return None
        if not isinstance(listed, list) or not isinstance(listed[0], str):
            self._wrong(
                f"architectures is {shown(listed)}", "architectures", listed, "a list of names"
            )
        return listed[0]

    def _check_spelling(self, kind: Kind) -> None:
        """Refuse `num_key_value_head` rather than take the default of the key that was meant."""
        known = kind.keys()
        unread = [key for key in self.raw if isinstance(key, str) and key not in known]
        for key in sorted(known - set(self.raw)):
            near = difflib.get_close_matches(key, unread, n=1, cutoff=0.93)
            if near:
                self._wrong(
                    f"unknown key {shown(near[0])}",
                    near[0],
                    self.raw[near[0]],
                    hint=f"did you mean {key}?",
                )

    def _value(self, key: Key, fields: Mapping[str, Any]) -> Any:
        name = next((name for name in key.names if self.raw.get(name) is not None), None)
        if name is None:
            null = next((name for name in key.names if name in self.raw), None)
            missing = key.absent if null is None or key.null is None else key.null
            if missing is Absent.REQUIRED:
                state = "missing" if null is None else "null"
                near = difflib.get_close_matches(key.names[0], map(str, self.raw), n=1, cutoff=0.8)
                self._wrong(
                    f"{' or '.join(key.names)} is {state}",
                    null or key.names[0],
                    allowed=_EXPECTED[key.type],
                    hint=f"the file has {shown(near[0])}" if near and not null else None,
                )
            value = missing(fields) if callable(missing) else missing
            return ACTIVATIONS[str(value)] if key.type == "activation" else value
        value = self.raw[name]
        if key.type == "activation" and isinstance(value, str):
            if value not in ACTIVATIONS:
                self._unsupported(name, f"activation {shown(value)}", tuple(ACTIVATIONS))
            return ACTIVATIONS[value]
        if not _fits(key, value):
            self._wrong(f"{name} is {shown(value)}", name, value, _EXPECTED[key.type])
        return float(value) if key.type == "number" else value

    def _window(self, kind: Kind, fields: Mapping[str, Any]) -> int | None:
        """Keys that a query sees, or None where all layers see all of them."""
        if kind.window is None:
            return None
        window, layers = kind.window, fields["layers"]
        types = self._layer_types(layers)
        if types == {"full_attention"} or not self._uses_window(window):
            return None
        if window.opt_in and types is None:
            first = self.raw.get("max_window_layers", layers)
            if type(first) is not int or first < 0:
                self._wrong(
                    f"max_window_layers is {shown(first)}",
                    "max_window_layers",
                    first,
                    "an integer, 0 or more",
                )
            if first >= layers:
                return None
            if first:
                self._unsupported("max_window_layers", "a window in some layers only")
        size = self.raw.get("sliding_window", window.absent)
        if size is None:
            return None
        if type(size) is not int or size <= 0:
            self._wrong(
                f"sliding_window is {shown(size)}",
                "sliding_window",
                size,
                "a positive integer or null",
            )
        return size if size < fields["max_seq"] else None

    def _uses_window(self, window: Window) -> bool:
        used = self.raw.get("use_sliding_window")
        if used is None:
            return not window.opt_in
        if not isinstance(used, bool):
            self._wrong(
                f"use_sliding_window is {shown(used)}",
                "use_sliding_window",
                used,
                "true or false",
            )
        return used

    def _layer_types(self, layers: int) -> set[str] | None:
        listed = self.raw.get("layer_types")
        if listed is None:
            return None
        if (
            not isinstance(listed, list)
            or len(listed) != layers
            or not all(isinstance(entry, str) for entry in listed)
        ):
            self._wrong(
                f"layer_types is {shown(listed)}", "layer_types", listed, f"{layers} names"
            )
        types = set(listed)
        if len(types) > 1 or not types <= {"full_attention", "sliding_attention"}:
            self._unsupported(
                "layer_types",
                f"layers of the kinds {', '.join(sorted(types))} in one model",
                ("full_attention in all", "sliding_attention in all"),
            )
        return types

    def _key_of(self, kind: Kind, field: str | None) -> str:
        rule = kind.fields.get(field or "")
        if isinstance(rule, Key):
            return next((name for name in rule.names if name in self.raw), rule.names[0])
        return field or "model_type"

    def _wrong(
        self,
        message: str,
        key: str,
        value: object = None,
        allowed: object = None,
        hint: str | None = None,
    ) -> NoReturn:
        raise ConfigError(
            message,
            file=self.file,
            line=_line_of(key, self.text),
            field=key,
            value=_brief(value),
            allowed=allowed,
            hint=hint,
        )

    def _unsupported(self, key: str, what: str, modelled: object = None) -> NoReturn:
        raise UnsupportedError(
            f"{what} is not modelled",
            file=self.file,
            line=_line_of(key, self.text),
            field=key,
            value=_brief(self.raw.get(key)),
            allowed=modelled,
        )


def _fits(key: Key, value: object) -> bool:
    if key.type == "integer":
        return type(value) is int and value > 0
    if key.type == "number":
        # The numbers are probabilities; a long integer does not even fit a float.
        whole = type(value) is int and value in (0, 1)
        return whole or (isinstance(value, float) and math.isfinite(value))
    return key.type == "boolean" and isinstance(value, bool)


def _locate(config: str | os.PathLike[str]) -> Path:
    path = Path(config)
    try:
        if path.is_dir():
            path = path / "config.json"
        if path.is_file():
            return path
        reason = "is not a regular file" if path.exists() else "does not exist"
    except (OSError, ValueError) as error:
        reason = f"cannot be looked up: {_reason(error)}"
    raise ConfigError(
        f"{shown(str(path))} {reason}",
        file=shown(str(path)).strip("'\""),
        field="model",
        value=str(config)[:200],
        allowed="a config.json, or a folder that holds one",
    )


def _read(path: Path) -> str:
    file = str(path)
    try:
        with path.open("rb") as stream:
            content = stream.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"cannot be read: {_reason(error)}", file=file) from None
    if len(content) > MAX_FILE_BYTES:
        raise ConfigError(
            "the file is too long for a config.json",
            file=file,
            allowed=f"at most {MAX_FILE_BYTES} bytes",
        )
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"not UTF-8 text: byte {error.object[error.start]:#04x} at offset {error.start}",
            file=file,
            line=content.count(b"\n", 0, error.start) + 1,
            allowed="JSON in UTF-8",
        ) from None


def _parse(text: str, file: str) -> Mapping[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) < len(pairs):
            keys = [key for key, _ in pairs]
            twice = next(key for key in keys if keys.count(key) > 1)
            raise ConfigError(
                f"key {shown(twice)} occurs twice", file=file, field=twice, allowed="each key once"
            )
        return result

    def no_constant(word: str) -> NoReturn:
        raise ConfigError(f"{word} is not JSON", file=file, value=word, allowed="a finite number")

    try:
        parsed = json.loads(text, object_pairs_hook=unique, parse_constant=no_constant)
    except json.JSONDecodeError as error:
        raise ConfigError(
            f"not JSON: {error.msg} (column {error.colno})", file=file, line=error.lineno
        ) from None
    except RecursionError:
        raise ConfigError("not a config.json: nested too deeply", file=file) from None
    except ValueError:
        # The only other one is Python's own limit on the digits of an integer.
        raise ConfigError("an integer has too many digits", file=file) from None
    if not isinstance(parsed, dict):
        raise ConfigError(
            f"the file holds {shown(parsed)}", file=file, allowed="an object of keys and values"
        )
    return parsed


def _line_of(key: str, text: str) -> int | None:
    """The line of a key, where the text holds it once and no nested object can be meant."""
    found = list(re.finditer(rf"{re.escape(json.dumps(key))}\s*:", text))
    return text.count("\n", 0, found[0].start()) + 1 if len(found) == 1 else None


def _brief(value: object) -> object:
    """A value as an error carries it: itself if short and plain, else as it is printed."""
    return value if value is None or isinstance(value, bool | float) else _plain(value)


def _plain(value: object) -> object:
    if isinstance(value, int) and value.bit_length() <= 200:
        return value
    if isinstance(value, str) and len(value) <= 80:
        return value
    return shown(value)


def _reason(error: Exception) -> str:
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return text[0].lower() + text[1:] if text else type(error).__name__
