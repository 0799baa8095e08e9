"""Chips, nodes and clusters as YAML, and what reads them."""

from hwmodels.catalog.chip_file import attach_kernel_parameters, load_chip, read_chip
from hwmodels.catalog.cluster_file import Blueprint, load_cluster, read_blueprint
from hwmodels.catalog.inventory import describe, list_chips, list_clusters, list_nodes

__all__ = [
    "Blueprint",
    "attach_kernel_parameters",
    "describe",
    "list_chips",
    "list_clusters",
    "list_nodes",
    "load_chip",
    "load_cluster",
    "read_blueprint",
    "read_chip",
]
