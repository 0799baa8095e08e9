"""What is trained: shapes of models, what they count to, the work of a job."""

from dse.workload.config import TransformerConfig
from dse.workload.workload import Workload, make_workload
from dse.workload.zoo import list_models, load_model

__all__ = ["TransformerConfig", "Workload", "list_models", "load_model", "make_workload"]
