"""What is trained: shapes of models and what they count to."""

from dse.workload.config import TransformerConfig
from dse.workload.zoo import list_models, load_model

__all__ = ["TransformerConfig", "list_models", "load_model"]
