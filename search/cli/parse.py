"""Types of the command line's flags, and its usage errors in our own words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Annotated, Any

from cyclopts import CycloptsError, Parameter, Token
from cyclopts.exceptions import (
    CoercionError,
    MissingArgumentError,
    RepeatArgumentError,
    UnknownCommandError,
    UnknownOptionError,
    UnusedCliTokensError,
)

from hwmodels.errors import ConfigError

LARGEST = 1 << 30
"""Counts above this are typing errors."""


def whole_number(_: Any, tokens: Sequence[Token]) -> int:
    """An integer as people write it: digits only, no exponent, no fraction.

    Raises:
        ConfigError: Anything else, or beyond 2^30.
    """
    token = tokens[0]
    text = token.value
    digits = text.isascii() and text.isdigit() and len(text) <= 10
    if not digits or int(text) > LARGEST:
        raise ConfigError(
            f"{token.keyword} {text[:40]!r} is not a whole number",
            field=token.keyword,
            value=text[:200],
            allowed=f"an integer from 0 to {LARGEST}",
        )
    return int(text)


Whole = Annotated[int, Parameter(converter=whole_number)]
Switch = Annotated[bool, Parameter(negative=(), show_default=False)]


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class Output:
    """Where results go.

    Attributes:
        json: Print one JSON object on stdout instead of tables.
        quiet: Print no warnings or progress on stderr, and only the answer on stdout.
        output: Also write the JSON object to this file (--output=- for stdout).
        force: Overwrite files that exist.
    """

    json: Switch = False
    quiet: Switch = False
    output: Annotated[str | None, Parameter(name=("--output", "-o"))] = None
    force: Switch = False


def usage_error(
    problem: CycloptsError, commands: Sequence[str], tokens: Sequence[str]
) -> ConfigError:
    """What the parser refused, as the error that every other bad input becomes."""
    if isinstance(problem, UnknownCommandError):
        word = next((token for token in tokens if token), "")
        near = get_close_matches(word, commands, n=1)
        return ConfigError(
            f"no command is called {word[:80]!r}",
            field="command",
            value=word[:200],
            allowed=list(commands),
            hint=_did_you_mean(near),
        )
    if isinstance(problem, UnknownOptionError):
        word = (problem.token.keyword or problem.token.value).split("=")[0]
        known = [name for argument in problem.argument_collection for name in argument.names]
        near = get_close_matches(word, [name for name in known if name.startswith("-")], n=1)
        return ConfigError(
            f"unknown option {word[:80]}",
            field=word[:80],
            value=word[:200],
            hint=_did_you_mean(near) or "`dse COMMAND --help` lists the options",
        )
    name = problem.argument.name if problem.argument is not None else None
    if isinstance(problem, MissingArgumentError):
        return ConfigError(f"{name} needs a value", field=name)
    if isinstance(problem, RepeatArgumentError):
        keyword = problem.token.keyword or name
        return ConfigError(f"{keyword} is given twice", field=keyword, value=problem.token.value)
    if isinstance(problem, UnusedCliTokensError):
        left = [str(token) for token in problem.unused_tokens or []]
        return ConfigError(f"{left[0][:80]!r} is one argument too many", value=left[0][:200])
    if isinstance(problem, CoercionError) and problem.token is not None:
        value = problem.token.value
        return ConfigError(
            f"{problem.token.keyword or name} {value[:80]!r} is not allowed",
            field=problem.token.keyword or name,
            value=value[:200],
        )
    problem.verbose = False
    return ConfigError(str(problem).split("\n")[0], field=name)


def _did_you_mean(near: Sequence[str]) -> str | None:
    return f"did you mean {near[0]}?" if near else None
