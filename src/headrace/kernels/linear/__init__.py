"""Dense products whose rows do not depend on their neighbours, bit for bit."""

from headrace.kernels.linear.reference import ROW_MULTIPLE, leaf_products, linear, pad_rows

__all__ = ["ROW_MULTIPLE", "leaf_products", "linear", "pad_rows"]
