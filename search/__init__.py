"""Which plan, and which hardware, should I choose?

Names are resolved when first used: the command line imports this package to print its help, and
must not pay for the evaluator then.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from search.hardware import explore
    from search.plans import PlanSearchResult, best_plans, search_plans
    from search.result import SearchResult

__all__ = ["PlanSearchResult", "SearchResult", "best_plans", "explore", "search_plans"]

_HOMES = {"explore": "hardware", "SearchResult": "result"}


def __getattr__(name: str) -> object:
    if name in __all__:
        return getattr(import_module(f"search.{_HOMES.get(name, 'plans')}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
