"""What is trained: shapes of models and what they count to."""

from dse.workload.config import TransformerConfig

__all__ = ["TransformerConfig"]
