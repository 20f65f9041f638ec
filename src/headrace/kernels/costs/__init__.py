"""What kernels must move and compute: bytes and FLOPs as plain functions, without torch."""
