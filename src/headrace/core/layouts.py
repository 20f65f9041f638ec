"""How a rank's KV region is laid out in bytes: the contract between prefiller and decoder.

A region holds one area per model layer, in layer order. A KV layer's area is

    [K|V][head][block][token][dim]

so a head's tokens are contiguous inside a block and, where block ids run on, over blocks.
One (head, block) run is the **atom**. Layers carry a schema each: a later model mixes KV layers
with layers of fixed-size state. Nothing here knows torch; the engine views the same bytes.
"""

from __future__ import annotations

from msgspec import Struct

from headrace.core.errors import ConfigError

EIGHT_BIT = "float8_e4m3fn"
# What models are computed in, and what a KV pool may be besides.
MODEL_ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
ITEM_BYTES = {**MODEL_ITEM_BYTES, EIGHT_BIT: 1}

# Attention folds KV in tiles of this many tokens from position 0 (docs/numerics.md):
# a block size must divide it so that a tile is a whole number of blocks.
KV_TILE_TOKENS = 128


class KvSchema(Struct, frozen=True, kw_only=True):
    """The KV of one layer of the model, before any sharding.

    Attributes:
        num_kv_heads: KV heads of the model [heads].
        head_dim: Width of a head [elements].
        dtype: Element type as named in ``ITEM_BYTES``.
    """

    num_kv_heads: int
    head_dim: int
    dtype: str

    @property
    def item_bytes(self) -> int:
        """Bytes of one element."""
        return ITEM_BYTES[self.dtype]

    @property
    def token_bytes(self) -> int:
        """Bytes of one token's K (or V) of one head."""
        return self.head_dim * self.item_bytes


class CacheLayout(Struct, frozen=True, kw_only=True):
    """Byte arrangement of one rank's KV region.

    Attributes:
        layers: One schema per model layer, in order; equal on both sides of a transfer up to dtype.
        first_head: First KV head (model-wide index) that this rank holds.
        num_heads: KV heads held, contiguous from ``first_head``.
        num_blocks: Blocks of the pool.
        block_size: Tokens of a block; divides ``KV_TILE_TOKENS``.
    """

    layers: tuple[KvSchema, ...]
    first_head: int
    num_heads: int
    num_blocks: int
    block_size: int

    def __post_init__(self) -> None:
        if self.block_size < 1 or KV_TILE_TOKENS % self.block_size:
            raise ConfigError(
                f"block_size={self.block_size}: expected a divisor of {KV_TILE_TOKENS} "
                f"(16, 32, 64 or 128)"
            )
        if self.num_blocks < 1:
            raise ConfigError(f"num_blocks={self.num_blocks}: a pool needs at least one block")
        for schema in self.layers:
            if not 0 <= self.first_head < self.first_head + self.num_heads <= schema.num_kv_heads:
                raise ConfigError(
                    f"heads {self.first_head}..{self.first_head + self.num_heads - 1} are not "
                    f"heads of a model with {schema.num_kv_heads} KV heads"
                )

    @property
    def heads(self) -> range:
        """Model-wide indices of the KV heads held."""
        return range(self.first_head, self.first_head + self.num_heads)

    def atom_bytes(self, layer: int) -> int:
        """Bytes of one head's K (or V) of one block of ``layer``."""
        return self.block_size * self.layers[layer].token_bytes

    def layer_bytes(self, layer: int) -> int:
        """Bytes of the area of ``layer``."""
        return 2 * self.num_heads * self.num_blocks * self.atom_bytes(layer)

    def layer_offset(self, layer: int) -> int:
        """Byte offset of the area of ``layer`` in the region."""
        return sum(self.layer_bytes(i) for i in range(layer))

    @property
    def num_bytes(self) -> int:
        """Bytes of the whole region."""
        return self.layer_offset(len(self.layers))

    def atom_offset(self, layer: int, kv: int, head: int, block: int) -> int:
        """Byte offset of one atom.

        Args:
            layer: Model layer.
            kv: 0 for K, 1 for V.
            head: Model-wide head index, one of ``heads``.
            block: Block id.
        """
        row = (kv * self.num_heads + head - self.first_head) * self.num_blocks + block
        return self.layer_offset(layer) + row * self.atom_bytes(layer)

    def bytes_per_token(self) -> int:
        """Bytes of one token over all layers and all heads held, K and V."""
        return sum(2 * self.num_heads * schema.token_bytes for schema in self.layers)
