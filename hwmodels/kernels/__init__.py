from hwmodels.kernels import attention, conv, matmul, optimizer, parameters, pointwise
from hwmodels.kernels.parts import KernelParts

__all__ = ["KernelParts", "attention", "conv", "matmul", "optimizer", "parameters", "pointwise"]
