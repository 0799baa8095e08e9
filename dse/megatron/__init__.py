"""Megatron-LM argument lines in and out."""

from dse.megatron.reader import MegatronRun, read_arguments, read_file
from dse.megatron.writer import argument_line, arguments

__all__ = ["MegatronRun", "argument_line", "arguments", "read_arguments", "read_file"]
