"""Which implementation of each kernel family a site gets: chosen once, and able to say why.

A **family** is one public function with one signature; a **variant** is one implementation of it;
a **site** describes where it will be called. ``bind`` walks a family's variants in their order of
preference and takes the first that does not decline. Nothing here touches a device or imports a
kernel library: a variant's code is imported when it is bound.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from headrace.core.errors import UnsupportedKernelError

F = TypeVar("F")


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Where kernels of one engine run: everything a variant may look at.

    Attributes:
        device: ``"cpu"`` or ``"cuda"``.
        capability: Compute capability of a CUDA device, (0, 0) elsewhere.
        num_processors: Streaming multiprocessors of the device; 0 on a CPU.
        dtype: Of weights and rows: ``"bfloat16"``, ``"float32"``.
        kv_dtype: Of the KV pool; ``""`` means ``dtype``.
        libraries: Optional packages that can be imported, by import name.
        sizes: Static sizes by name: ``head_dim``, ``queries_per_kv``, ``block_size``,
            ``hidden``, ``expert_width``, ``num_experts``, ``top_k``, ``vocab_size``.
    """

    device: str = "cpu"
    capability: tuple[int, int] = (0, 0)
    num_processors: int = 0
    dtype: str = "float32"
    kv_dtype: str = ""
    libraries: frozenset[str] = frozenset()
    sizes: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant(Generic[F]):
    """One implementation.

    Attributes:
        name: Ends in its technology: ``reference``, ``triton``, ``flash_attention_4``.
        load: Imports and returns the function; called at most once a binding.
        decline: Why it cannot run at a site, in words; None when it can.
    """

    name: str
    load: Callable[[], F]
    decline: Callable[[Site], str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Family(Generic[F]):
    """One public signature and everything that implements it.

    Attributes:
        name: E.g. ``decode_attention``.
        summary: One line for people.
        variants: Best first; the last is the plain-torch reference, which takes every site.
    """

    name: str
    summary: str
    variants: tuple[Variant[F], ...]

    def variant(self, name: str) -> Variant[F]:
        """Return a variant by name.

        Raises:
            KeyError: There is none.
        """
        return {each.name: each for each in self.variants}[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice(Generic[F]):
    """What ``choose`` found.

    Attributes:
        family: Which family.
        variant: The chosen one.
        declined: Each variant that was preferred to it, with its reason.
    """

    family: Family[F]
    variant: Variant[F]
    declined: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        """One line: the choice, and each refusal before it."""
        reasons = "; ".join(f"not {name}: {reason}" for name, reason in self.declined)
        return f"{self.family.name}: {self.variant.name}" + (f" ({reasons})" if reasons else "")


def choose(family: Family[F], site: Site) -> Choice[F]:
    """Take the first variant that does not decline.

    Raises:
        UnsupportedKernelError: All decline.
    """
    declined: list[tuple[str, str]] = []
    for variant in family.variants:
        reason = variant.decline(site)
        if reason is None:
            return Choice(family=family, variant=variant, declined=tuple(declined))
        declined.append((variant.name, reason))
    reasons = "; ".join(f"{name}: {reason}" for name, reason in declined)
    raise UnsupportedKernelError(f"no kernel of {family.name} runs here: {reasons}")


def bind(family: Family[F], site: Site) -> F:
    """Return the function of the first variant that does not decline.

    Raises:
        UnsupportedKernelError: All decline.
    """
    return choose(family, site).variant.load()


def accept_all(site: Site) -> str | None:
    """Decline nothing: what references say."""
    return None


def needs_triton(site: Site) -> str | None:
    """Decline where Triton kernels cannot run."""
    if site.device != "cuda":
        return f"needs a CUDA device, this is {site.device}"
    if site.capability < (8, 0):
        return f"needs compute capability 8.0, this is {site.capability[0]}.{site.capability[1]}"
    if "triton" not in site.libraries:
        return "needs the package triton, which cannot be imported"
    return None
