"""Top-k gate: which experts a token goes to, and with what weight."""

from headrace.kernels.gate.reference import gate_topk

__all__ = ["gate_topk"]
