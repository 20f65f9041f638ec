"""SwiGLU activation."""

from headrace.kernels.swiglu.reference import swiglu

__all__ = ["swiglu"]
