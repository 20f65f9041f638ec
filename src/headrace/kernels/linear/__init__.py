"""Dense products whose rows do not depend on their neighbours, bit for bit."""

from headrace.kernels.linear.packed import PackedWeight, num_padded_rows, pack
from headrace.kernels.linear.products import Products, choose_products
from headrace.kernels.linear.reference import ROW_MULTIPLE, leaf_products, linear, pad_rows
from headrace.kernels.linear.weights import Dense, Split, bind_dense, bind_split

__all__ = [
    "ROW_MULTIPLE",
    "Dense",
    "PackedWeight",
    "Products",
    "Split",
    "bind_dense",
    "bind_split",
    "choose_products",
    "leaf_products",
    "linear",
    "num_padded_rows",
    "pack",
    "pad_rows",
]
