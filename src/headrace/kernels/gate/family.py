"""The family ``route``: from gate logits to each expert's tokens."""

from __future__ import annotations

from collections.abc import Callable

from headrace.kernels.catalogue import Family, Site, Variant, accept_all, needs_triton
from headrace.kernels.gate.routing import Routing

Route = Callable[..., Routing]

# A program holds all experts of a token in registers.
MAX_EXPERTS = 1024


def _load_triton() -> Route:
    from headrace.kernels.gate.triton import route

    return route


def _load_reference() -> Route:
    from headrace.kernels.gate.route_reference import route

    return route


def decline_triton(site: Site) -> str | None:
    """Say why the Triton kernels cannot run at a site."""
    num_experts = site.sizes.get("num_experts", 0)
    if num_experts > MAX_EXPERTS:
        return f"takes at most {MAX_EXPERTS} experts, the model has {num_experts}"
    return needs_triton(site)


ROUTE: Family[Route] = Family(
    name="route",
    summary="each token's experts and weights, and the pairs sorted by expert",
    variants=(
        Variant(name="triton", load=_load_triton, decline=decline_triton),
        Variant(name="reference", load=_load_reference, decline=accept_all),
    ),
)
