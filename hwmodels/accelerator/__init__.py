from hwmodels.accelerator.conditioning import LeftOut, conditioned, leave_one_out
from hwmodels.accelerator.design import MEMORIES, NODES_NM, PRECISIONS, DesignColumns
from hwmodels.accelerator.known import KnownSilicon, load_known_silicon
from hwmodels.accelerator.limits import Violation, violations
from hwmodels.accelerator.network_cost import NetworkCost, network_cost
from hwmodels.accelerator.silicon import Interval, SiliconColumns, evaluate_silicon
from hwmodels.accelerator.template import Systolic, load_template, read_template
from hwmodels.accelerator.to_chip import to_chip, to_chip_columns

__all__ = [
    "MEMORIES",
    "NODES_NM",
    "PRECISIONS",
    "DesignColumns",
    "Interval",
    "KnownSilicon",
    "LeftOut",
    "NetworkCost",
    "SiliconColumns",
    "Systolic",
    "Violation",
    "conditioned",
    "evaluate_silicon",
    "leave_one_out",
    "load_known_silicon",
    "load_template",
    "network_cost",
    "read_template",
    "to_chip",
    "to_chip_columns",
    "violations",
]
