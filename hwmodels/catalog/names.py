"""Names of the catalogue: which file a name means.

A file is named after its `name:` in lower case with dashes. Names match whatever their case,
dashes, dots, underscores and spaces; `aliases.yaml` adds the short ones. A name that is only a
part of known names is refused with the candidates, never guessed.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from hwmodels.errors import ConfigError
from hwmodels.sourced import load_document

CATALOG = Path(__file__).parent
_SEPARATORS = re.compile(r"[-_. /]+")


def is_path(name: str | Path) -> bool:
    """Whether a chip, node or cluster is given as a file rather than by name."""
    if isinstance(name, Path):
        return True
    return name.endswith((".yaml", ".yml")) or "/" in name or "\\" in name


def folded(name: str) -> str:
    """A name as it is compared: lower case, without separators."""
    return _SEPARATORS.sub("", name.casefold())


def find(folder: str, name: str, *, what: str, field: str) -> Path:
    """The file that a name or an alias means.

    Args:
        folder: `chips` or `nodes`.
        name: The name as given.
        what: What is looked for, for the error.
        field: Where the name was given, for the error.

    Raises:
        ConfigError: No such name, or one that fits several.
    """
    known = stems(folder)
    wanted = folded(name)
    wanted = folded(aliases(folder).get(wanted, wanted))
    if wanted in known:
        return CATALOG / folder / f"{known[wanted]}.yaml"
    candidates = [known[key] for key in known if wanted and wanted in key]
    if candidates:
        message = f"{what} {name[:60]!r} could be any of several"
        if len(candidates) == 1:
            message = f"no {what} named {name[:60]!r}"
        hint = f"did you mean {' or '.join(sorted(candidates))}?"
        raise ConfigError(message, field=field, value=name, hint=hint)
    near = difflib.get_close_matches(wanted[:60], [*known, *aliases(folder)], n=3, cutoff=0.5)
    named = dict.fromkeys(known.get(key) or aliases(folder)[key] for key in near)
    raise ConfigError(
        f"no {what} named {name[:60]!r}",
        field=field,
        value=name,
        allowed=sorted(known.values()),
        hint=f"did you mean {' or '.join(named)}? A file of your own is given by its path"
        if named
        else "a file of your own is given by its path, ending in .yaml",
    )


@cache
def stems(folder: str) -> Mapping[str, str]:
    """Folded name to file stem, of every file of a folder."""
    return {folded(path.stem): path.stem for path in sorted((CATALOG / folder).glob("*.yaml"))}


@cache
def aliases(folder: str) -> Mapping[str, str]:
    """Folded alias to file stem."""
    return {folded(alias): stem for alias, stem in _written_aliases(folder).items()}


def aliases_of(folder: str, stem: str) -> list[str]:
    """The aliases of one file."""
    return [alias for alias, target in _written_aliases(folder).items() if target == stem]


@cache
def _written_aliases(folder: str) -> Mapping[str, str]:
    section = load_document(CATALOG / "aliases.yaml", kinds=("aliases",)).section(folder)
    return {} if section is None else {alias: section.text(alias) for alias in section}
