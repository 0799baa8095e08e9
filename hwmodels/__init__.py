"""How fast is this hardware, and what does it cost?"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hwmodels.catalog import (
        describe,
        list_chips,
        list_clusters,
        list_nodes,
        load_chip,
        load_cluster,
    )
    from hwmodels.chip import Chip
    from hwmodels.errors import (
        ConfigError,
        DseError,
        InfeasibleError,
        UnitError,
        UnsupportedError,
    )
    from hwmodels.network import Cluster, Level
    from hwmodels.table import HardwareTable
    from hwmodels.version import __version__

__all__ = [
    "Chip",
    "Cluster",
    "ConfigError",
    "DseError",
    "HardwareTable",
    "InfeasibleError",
    "Level",
    "UnitError",
    "UnsupportedError",
    "__version__",
    "describe",
    "list_chips",
    "list_clusters",
    "list_nodes",
    "load_chip",
    "load_cluster",
]

# Names are imported when first used, so that `import hwmodels` costs nothing.
_HOMES = {
    "Chip": "chip",
    "Cluster": "network",
    "Level": "network",
    "HardwareTable": "table",
    "__version__": "version",
    **dict.fromkeys(
        ("ConfigError", "DseError", "InfeasibleError", "UnitError", "UnsupportedError"), "errors"
    ),
    **dict.fromkeys(
        ("describe", "list_chips", "list_clusters", "list_nodes", "load_chip", "load_cluster"),
        "catalog",
    ),
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'hwmodels' has no attribute {name!r}")
    return getattr(import_module(f"hwmodels.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
