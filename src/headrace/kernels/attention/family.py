"""The attention families that a device engine binds: decode over splits, prefill over chunks."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from headrace.kernels.catalogue import Family, Site, Variant, accept_all, needs_triton

PagedAttention = Callable[..., Tensor]

HEAD_DIMS = (32, 64, 128, 256)
FLASH4_HEAD_DIMS = (64, 128, 256)
BLOCK_SIZES = (16, 32, 64, 128)
HALF_DTYPES = ("bfloat16", "float16")
DTYPES = (*HALF_DTYPES, "float32")
EIGHT_BIT = "float8_e4m3fn"
# A program holds all query heads of a KV head; more would leave the registers.
MAX_QUERIES_PER_KV = 64
# Up to here a step waits for one thing after another rather than for bandwidth.
MAX_FEW_ROWS = 8


def _load_decode_triton() -> PagedAttention:
    from headrace.kernels.attention.triton_decode import paged_decode_attention

    return paged_decode_attention


def _load_decode_few_rows_triton() -> PagedAttention:
    from headrace.kernels.attention.triton_decode import paged_decode_attention_few_rows

    return paged_decode_attention_few_rows


def _load_decode_reference() -> PagedAttention:
    from headrace.kernels.attention.decode_reference import paged_decode_attention

    return paged_decode_attention


def _load_prefill_flash4() -> PagedAttention:
    from headrace.kernels.attention.flash4 import paged_prefill_attention

    return paged_prefill_attention


def _load_prefill_triton() -> PagedAttention:
    from headrace.kernels.attention.triton_prefill import paged_prefill_attention

    return paged_prefill_attention


def _load_prefill_reference() -> PagedAttention:
    from headrace.kernels.attention.prefill_reference import paged_prefill_attention

    return paged_prefill_attention


def decline_sizes(site: Site) -> str | None:
    """Say which of the site's sizes and dtypes the Triton kernels do not take."""
    head_dim = site.sizes.get("head_dim")
    if head_dim not in HEAD_DIMS:
        return f"needs a head_dim of {HEAD_DIMS}, this is {head_dim}"
    block_size = site.sizes.get("block_size")
    if block_size not in BLOCK_SIZES:
        return f"needs a block size of {BLOCK_SIZES}, this is {block_size}"
    if site.dtype not in DTYPES:
        return f"needs queries of {DTYPES}, these are {site.dtype}"
    if (site.sizes.get("queries_per_kv") or 1) > MAX_QUERIES_PER_KV:
        return f"takes {MAX_QUERIES_PER_KV} query heads of a KV head at most"
    return None


def decline_pool(site: Site) -> str | None:
    """Say why the Triton kernels cannot read a site's pool."""
    kv_dtype = site.kv_dtype or site.dtype
    if kv_dtype not in (site.dtype, EIGHT_BIT):
        return f"needs a pool of {site.dtype} or {EIGHT_BIT}, this is {kv_dtype}"
    if kv_dtype == EIGHT_BIT and site.device == "cuda" and site.capability < (8, 9):
        return f"needs compute capability 8.9 for a pool of {EIGHT_BIT}"
    return None


def decline_decode_triton(site: Site) -> str | None:
    """Say why the Triton decode kernels cannot run at a site."""
    return decline_pool(site) or needs_triton(site) or decline_sizes(site)


def decline_decode_few_rows(site: Site) -> str | None:
    """Say why the kernel for few rows cannot, or should not, run at a site."""
    rows = site.sizes.get("num_tokens", 0)
    if rows > MAX_FEW_ROWS:
        return f"pays up to {MAX_FEW_ROWS} rows, these are {rows}"
    return decline_decode_triton(site)


def decline_prefill_dtypes(site: Site) -> str | None:
    """Decline prefill in other than one 16-bit dtype throughout."""
    kv_dtype = site.kv_dtype or site.dtype
    if kv_dtype != site.dtype or site.dtype not in HALF_DTYPES:
        return (
            f"needs queries and a pool of one of {HALF_DTYPES}, these are "
            f"{site.dtype} and {kv_dtype}"
        )
    return None


def decline_prefill_triton(site: Site) -> str | None:
    """Say why the Triton prefill kernel cannot run at a site."""
    if site.dtype not in HALF_DTYPES:
        return f"needs queries of {HALF_DTYPES}, these are {site.dtype}"
    return needs_triton(site) or decline_pool(site) or decline_sizes(site)


def decline_prefill_flash4(site: Site) -> str | None:
    """Say why flash-attn-4 cannot run at a site: it pages on these architectures only."""
    if "flash_attn.cute" not in site.libraries:
        return "needs the package flash-attn-4, which cannot be imported"
    if site.device != "cuda" or site.capability[0] not in (9, 10, 11):
        return f"needs compute capability 9, 10 or 11, this is {site.capability[0]}"
    head_dim = site.sizes.get("head_dim")
    if head_dim not in FLASH4_HEAD_DIMS:
        return f"needs a head_dim of {FLASH4_HEAD_DIMS}, this is {head_dim}"
    return decline_prefill_dtypes(site) or decline_sizes(site)


DECODE_ATTENTION: Family[PagedAttention] = Family(
    name="decode_attention",
    summary="one new token of each sequence against its whole paged history",
    variants=(
        Variant(
            name="few_rows_triton",
            load=_load_decode_few_rows_triton,
            decline=decline_decode_few_rows,
        ),
        Variant(name="triton", load=_load_decode_triton, decline=decline_decode_triton),
        Variant(name="reference", load=_load_decode_reference, decline=accept_all),
    ),
)

PREFILL_ATTENTION: Family[PagedAttention] = Family(
    name="prefill_attention",
    summary="chunks of several sequences, causally, against their paged histories",
    variants=(
        Variant(
            name="flash_attention_4", load=_load_prefill_flash4, decline=decline_prefill_flash4
        ),
        Variant(name="triton", load=_load_prefill_triton, decline=decline_prefill_triton),
        Variant(name="reference", load=_load_prefill_reference, decline=accept_all),
    ),
)
