"""What a training plan costs on given hardware.

Example:
    >>> import dse, hwmodels
    >>> cluster = hwmodels.load_cluster("dgx-h100", num_chips=512)
    >>> plan = dse.Plan(tp=8, pp=4, global_batch_size=1024)
    >>> report = dse.evaluate("llama-3-70b", cluster, plan)
    >>> report.fits
    True
"""

from dse.evaluation import evaluate
from dse.plan import Plan, PlanTable
from dse.report import Report
from dse.stacks import Stack, list_stacks, load_stack
from dse.step import StepModel
from dse.workload import TransformerConfig, Workload, list_models, load_model, make_workload

__all__ = [
    "Plan",
    "PlanTable",
    "Report",
    "Stack",
    "StepModel",
    "TransformerConfig",
    "Workload",
    "evaluate",
    "list_models",
    "list_stacks",
    "load_model",
    "load_stack",
    "make_workload",
]
