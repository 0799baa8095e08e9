from hwmodels.collectives.roofline import roofline_s_per_byte
from hwmodels.collectives.verbs import (
    ALGORITHMS,
    Coefficients,
    algbw,
    busbw_factor,
    coefficients,
    fastest_s,
    p2p,
    seconds,
)

__all__ = [
    "ALGORITHMS",
    "Coefficients",
    "algbw",
    "busbw_factor",
    "coefficients",
    "fastest_s",
    "p2p",
    "roofline_s_per_byte",
    "seconds",
]
