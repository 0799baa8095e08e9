"""Software stacks: what a framework overlaps, fuses and reserves."""

from dse.stacks.levels import calibrated_stack
from dse.stacks.stack import Stack, default_stack, list_stacks, load_stack

__all__ = ["Stack", "calibrated_stack", "default_stack", "list_stacks", "load_stack"]
