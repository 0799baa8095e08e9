from hwmodels.kernels import attention, matmul, optimizer, parameters, pointwise
from hwmodels.kernels.parts import KernelParts

__all__ = ["KernelParts", "attention", "matmul", "optimizer", "parameters", "pointwise"]
