"""What a supervisor needs to start one rank, as one value that crosses the process border.

It travels as JSON on the standard input of ``python -m headrace.engine``: nothing secret is on
a command line or in the environment.
"""

from __future__ import annotations

import math

import msgspec
from msgspec import Struct

from headrace.core.chaos import WriteFaults
from headrace.core.errors import ConfigError
from headrace.core.layouts import EIGHT_BIT
from headrace.core.sharding import Role, Sharding

# The smallest value of each whole number; 0 leaves the choice to us where it is allowed.
_LEAST = {
    "kv_cache_mib": 0,
    "max_model_tokens": 0,
    "max_sequences": 1,
    "max_step_tokens": 1,
    "threads": 0,
}


class EngineConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Knobs of one rank's engine.

    Attributes:
        device: ``cpu`` or ``cuda``. A device engine runs in one ``mono`` rank so far.
        load_format: ``checkpoint``, or ``random``: weights of the config's shape, for measuring.
        dtype: ``float32``, ``bfloat16``, or ``auto``: the checkpoint's, see ``resolve_dtype``.
        kv_dtype: ``auto`` (as ``dtype``), or ``fp8``: e4m3, half the bytes, on a device only.
        exact: Canonical sums: results do not depend on the sharding, bit for bit.
        block_size: Tokens of a KV block; divides 128.
        kv_cache_mib: Size of the pool [MiB]; 0 sizes it for ``max_sequences`` full contexts,
            capped at 256 MiB on a CPU and at what a dry run leaves free on a device.
        max_model_tokens: Longest prompt + output [tokens]; 0 takes the model's own limit.
        max_sequences: Sequences decoded together by one rank.
        max_step_tokens: Prompt tokens computed in one step (chunk size) [tokens].
        overlap_prefill: On a GPU, prompt chunks run on a stream of their own beside decode steps;
            off, a decode step waits for the chunk before it.
        prefix_cache: Reuse blocks of equal token history.
        pinned_fraction: Part of the pool that may wait for KV not yet arrived.
        threads: Torch threads of the rank; 0 takes cores / ranks on the host, at least 1.
        collective_timeout_s: Longest wait for a rank inside a collective [s].
        session_timeout_s: Longest wait without progress in a transfer session [s].
        heartbeat_s: Time between signs of life [s].
    """

    device: str = "cpu"
    load_format: str = "checkpoint"
    dtype: str = "auto"
    kv_dtype: str = "auto"
    exact: bool = True
    block_size: int = 16
    kv_cache_mib: int = 0
    max_model_tokens: int = 0
    max_sequences: int = 64
    max_step_tokens: int = 512
    overlap_prefill: bool = True
    prefix_cache: bool = True
    pinned_fraction: float = 0.5
    threads: int = 0
    collective_timeout_s: float = 20.0
    session_timeout_s: float = 30.0
    heartbeat_s: float = 0.5

    def __post_init__(self) -> None:
        if self.device not in ("cpu", "cuda"):
            raise ConfigError(f"device={self.device!r}: expected cpu or cuda")
        if self.load_format not in ("checkpoint", "random"):
            raise ConfigError(f"load_format={self.load_format!r}: expected checkpoint or random")
        if self.device != "cpu" and self.exact:
            raise ConfigError(
                f"exact=true with device={self.device}: canonical sums are computed on the CPU "
                f"only; give --no-exact, or --device cpu"
            )
        if self.load_format == "random" and self.device == "cpu":
            raise ConfigError(
                "load_format=random: weights are made on a device; give --device cuda"
            )
        if self.dtype not in ("auto", "float32", "bfloat16"):
            raise ConfigError(f"dtype={self.dtype!r}: expected auto, float32 or bfloat16")
        if self.kv_dtype not in ("auto", "fp8"):
            raise ConfigError(f"kv_dtype={self.kv_dtype!r}: expected auto or fp8")
        if self.kv_dtype != "auto" and self.device == "cpu":
            raise ConfigError(
                f"kv_dtype={self.kv_dtype} with device=cpu: the CPU engine and transports have KV "
                f"in the model's dtype only; give --kv-dtype auto, or --device cuda"
            )
        if not 0.0 < self.pinned_fraction <= 1.0:
            raise ConfigError(f"pinned_fraction={self.pinned_fraction}: expected in (0, 1]")
        for name, least in _LEAST.items():
            # Beyond 32 bits the number would fit no message to a rank, and none is meant.
            if not least <= getattr(self, name) < 2**31:
                raise ConfigError(f"{name}={getattr(self, name)}: expected {least} to {2**31 - 1}")
        for name in ("collective_timeout_s", "session_timeout_s", "heartbeat_s"):
            if not 0.0 < getattr(self, name) < math.inf:
                raise ConfigError(f"{name}={getattr(self, name)}: expected seconds above 0")

    def resolve_dtype(self, checkpoint_dtype: str) -> str:
        """Return the dtype to run a checkpoint in: ``float32`` or ``bfloat16``.

        A float16 checkpoint runs in float32, which holds all its values; bfloat16 does not.
        """
        if self.dtype != "auto":
            return self.dtype
        return "float32" if checkpoint_dtype == "float16" else checkpoint_dtype

    def resolve_kv_dtype(self, checkpoint_dtype: str) -> str:
        """Return the dtype of the KV pool, as named in ``ITEM_BYTES``."""
        return EIGHT_BIT if self.kv_dtype == "fp8" else self.resolve_dtype(checkpoint_dtype)


class LaunchSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One rank to start.

    Attributes:
        deployment_id: Prefix of every name the deployment leaves on the machine.
        run_dir: Private folder (mode 0700) for control sockets; removed by the supervisor.
        key: Hex of the control key.
        model: Model folder, or ``replay:FILE``.
        tokenizer: Folder of tokenizer and config; empty takes the model's.
        replica: Replica's name, unique in the deployment.
        role: The replica's role.
        sharding: The replica's sharding.
        rank: This rank's index in the replica.
        generation: Taken anew at each start, never reused in a deployment.
        ranks_on_host: Ranks that share this host's cores.
        supervisor: Control address to report to.
        transport: KV transport.
        host: Address of this host that the rank's ``tcp`` transport binds and its peers reach.
        spans_hosts: The deployment has ranks on other hosts: control sockets listen on ``host``
            too, and count and repeat their messages.
        engine: The engine's knobs.
        faults: What goes wrong with the rank's writes, on purpose.
    """

    deployment_id: str
    run_dir: str
    key: str
    model: str
    replica: str
    role: Role
    sharding: Sharding
    rank: int
    generation: int
    ranks_on_host: int
    supervisor: str
    tokenizer: str = ""
    transport: str = "shm"
    host: str = "127.0.0.1"
    spans_hosts: bool = False
    engine: EngineConfig = EngineConfig()
    faults: WriteFaults = WriteFaults()

    @property
    def name(self) -> str:
        """Name of the rank in logs, sockets and segments."""
        return f"{self.replica}.{self.rank}"

    @property
    def control_host(self) -> str:
        """Host that the control socket listens on besides ``address``; empty for none."""
        return self.host if self.spans_hosts else ""

    @property
    def address(self) -> str:
        """Control address that the rank binds for its own host; minted per generation."""
        return f"ipc://{self.run_dir}/{self.name}.{self.generation}.ctl"

    def to_json(self) -> bytes:
        """Encode for the child's standard input."""
        return msgspec.json.encode(self)

    @staticmethod
    def from_json(data: bytes) -> LaunchSpec:
        """Decode; raises ``ConfigError`` on anything unexpected."""
        try:
            return msgspec.json.decode(data, type=LaunchSpec)
        except msgspec.MsgspecError as error:
            raise ConfigError(f"launch spec does not parse: {error}") from error
