"""RMSNorm, alone or after a residual add."""

from headrace.kernels.norm.reference import add_rms_norm, rms_norm

__all__ = ["add_rms_norm", "rms_norm"]
