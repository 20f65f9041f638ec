"""One deployment as one config, and the ranks that it starts.

Composes each component's own config and holds the cross-checks. A deployment file is TOML:

    model = "path/to/folder"        # or "tiny", or "replay:FILE"
    transport = "shm"
    [prefill]
    tp = 2
    ep = 2
    [decode]
    dp = 2
    ep = 2
    [engine]
    block_size = 16
    [serving]
    port = 8000
    [router]
    late_s = 3.0
    [hosts]                         # other hosts, by the address of their agent
    b = "10.0.0.2:7100"             # then: hosts = ["b"] under [prefill]

Without ``[prefill]`` and ``[decode]`` the deployment is one ``mono`` replica.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from headrace.core.addresses import parse_address
from headrace.core.chaos import ChaosPlan, parse_chaos
from headrace.core.config import build, load_toml, suggest
from headrace.core.errors import ConfigError
from headrace.core.launch import EngineConfig, LaunchSpec
from headrace.core.layouts import KV_TILE_TOKENS
from headrace.core.sharding import Role, Sharding, check_sharding
from headrace.models.config import ModelConfig
from headrace.models.shard import shard_of
from headrace.serving.openai.config import ServingConfig
from headrace.serving.router.config import RegistryConfig

TRANSPORTS = ("shm", "tcp")
MAX_REPLICAS = 64
# The host of the command, among names of hosts.
HERE = "here"
LOOPBACK = "127.0.0.1"
ROLE_TABLES = ("prefill", "decode", "mono")
# Knobs of the engine that a role may have its own of; 0 takes the common one.
OWN_KNOBS = ("block_size", "kv_cache_mib")


class ReplicaConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Replicas of one role.

    Attributes:
        tp: Ranks that share attention heads (prefill).
        dp: Ranks with their own requests (decode, mono).
        ep: Ranks that share the experts; 0 takes all ranks of the replica (1 if dense).
        replicas: How many of them.
        block_size: Tokens of a KV block; 0 takes the engine's.
        kv_cache_mib: Size of each rank's pool [MiB]; 0 takes the engine's.
        hosts: Where they run: one name for all of them or one for each, ``here`` being the host
            of the command; none puts all of them here.
    """

    tp: int = 1
    dp: int = 1
    ep: int = 0
    replicas: int = 1
    block_size: int = 0
    kv_cache_mib: int = 0
    hosts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if len(self.hosts) not in (0, 1, self.replicas):
            raise ConfigError(
                f"hosts={list(self.hosts)}: expected one name for all replicas or one for each "
                f"of {self.replicas}"
            )
        if not 1 <= self.replicas <= MAX_REPLICAS:
            raise ConfigError(f"replicas={self.replicas}: expected 1 to {MAX_REPLICAS}")

    def engine(self, common: EngineConfig) -> EngineConfig:
        """Return the knobs of the role's ranks: the common ones, but for what it has its own of."""
        own = {name: getattr(self, name) for name in OWN_KNOBS if getattr(self, name)}
        return msgspec.structs.replace(common, **own) if own else common

    def host_of(self, index: int) -> str:
        """Return the name of the host of one of the replicas."""
        return (self.hosts or (HERE,))[index if len(self.hosts) > 1 else 0]

    def sharding(self, *, is_moe: bool) -> Sharding:
        """Resolve ``ep`` for a model with or without experts."""
        ep = self.ep or (self.tp * self.dp if is_moe else 1)
        return Sharding(tp=self.tp, dp=self.dp, ep=ep)


class DeploymentConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that ``headrace serve`` needs to know.

    Attributes:
        model: Model folder, ``tiny`` for the embedded model, or ``replay:FILE``.
        transport: How KV moves from prefillers to decoders.
        prefill: Prefill replicas; needs ``decode``.
        decode: Decode replicas; needs ``prefill``.
        mono: Replicas that do both; excludes the other two.
        engine: Knobs of every rank.
        serving: The HTTP edge.
        router: When ranks count as late, dead or stuck.
        chaos: Faults on purpose, see ``core.chaos``; only behind a loopback address.
        hosts: Address ``HOST:PORT`` of the agent of each other host, by a name of your own.
        address: Address of this host as the others reach it; empty finds it.
        key_file: File with the secret that the hosts share; needed when there are several.
    """

    model: str = "tiny"
    transport: str = "shm"
    prefill: ReplicaConfig | None = None
    decode: ReplicaConfig | None = None
    mono: ReplicaConfig | None = None
    engine: EngineConfig = EngineConfig()
    serving: ServingConfig = ServingConfig()
    router: RegistryConfig = RegistryConfig()
    chaos: str = ""
    hosts: dict[str, str] = {}
    address: str = ""
    key_file: str = ""

    def __post_init__(self) -> None:
        if self.transport not in TRANSPORTS:
            raise ConfigError(
                f"transport={self.transport!r}: expected one of {', '.join(TRANSPORTS)}; "
                f"{suggest(self.transport, list(TRANSPORTS))}"
            )
        if (self.prefill is None) != (self.decode is None):
            given, missing = ("prefill", "decode") if self.prefill else ("decode", "prefill")
            raise ConfigError(f"{given} without {missing}: give both, or neither for mono")
        if self.mono is not None and self.prefill is not None:
            raise ConfigError("mono beside prefill and decode: choose one of the two")
        _check_block_size("engine", self.engine.block_size)
        for role, replica in self.roles:
            _check_block_size(role, replica.block_size or self.engine.block_size)
            _check_engine(role, replica, self.engine)
        if self.chaos:
            self._check_chaos(parse_chaos(self.chaos))
        self._check_hosts()
        self._check_device()

    def _check_device(self) -> None:
        mono = self.mono or ReplicaConfig()
        if self.engine.device != "cpu" and (self.prefill or (mono.dp, mono.replicas) != (1, 1)):
            raise ConfigError("device=cuda: one mono rank has the device so far; give --mono dp=1")

    def _check_chaos(self, plan: ChaosPlan) -> None:
        _check_loopback(self.serving.host)
        if not plan.writes.is_calm and self.prefill is None:
            raise ConfigError(
                f"chaos {self.chaos!r}: a mono deployment moves no KV whose writes could fail; "
                f"give --prefill and --decode, or only kill and stop"
            )

    @property
    def roles(self) -> tuple[tuple[Role, ReplicaConfig], ...]:
        """The roles that the deployment has, with their replicas."""
        if self.prefill is not None and self.decode is not None:
            return ((Role.PREFILL, self.prefill), (Role.DECODE, self.decode))
        return ((Role.MONO, self.mono or ReplicaConfig()),)

    @property
    def places(self) -> dict[str, str]:
        """Name of the host of each replica that is not on this one."""
        return {
            f"{role}{index}": replica.host_of(index)
            for role, replica in self.roles
            for index in range(replica.replicas)
            if replica.host_of(index) != HERE
        }

    def _check_hosts(self) -> None:
        for name, address in self.hosts.items():
            parse_address(address, where=f"hosts.{name}")
        if HERE in self.hosts:
            raise ConfigError(f"hosts.{HERE}: that is the name of this host; choose another")
        for replica, name in self.places.items():
            if name not in self.hosts:
                raise ConfigError(
                    f"{replica} is to run on host {name!r}, which is not in [hosts]; "
                    f"{suggest(name, [*self.hosts, HERE])}"
                )
        if self.places and not self.key_file:
            raise ConfigError(
                "replicas on other hosts need a key file: give --key-file FILE, which "
                "'headrace agent --new-key FILE' makes"
            )
        used = {replica.host_of(i) for _, replica in self.roles for i in range(replica.replicas)}
        if self.transport == "shm" and len(used) > 1 and self.prefill is not None:
            raise ConfigError(
                f"transport='shm' moves KV inside one host, and prefill and decode are on "
                f"{', '.join(sorted(used))}; use --transport tcp"
            )


def _check_block_size(where: str, block_size: int) -> None:
    if block_size < 1 or KV_TILE_TOKENS % block_size:
        raise ConfigError(
            f"{where} block_size={block_size}: expected a divisor of {KV_TILE_TOKENS}, "
            f"such as 16, 32, 64 or 128"
        )


def _check_engine(role: str, replica: ReplicaConfig, common: EngineConfig) -> None:
    try:
        replica.engine(common)
    except ConfigError as error:
        raise ConfigError(f"{role} {error}") from error


def _check_loopback(host: str) -> None:
    """Refuse to break on purpose what others may rely on."""
    try:
        is_loopback = host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        is_loopback = False
    if not is_loopback:
        raise ConfigError(
            f"chaos with host {host!r}: faults on purpose are for loopback only; "
            f"serve at 127.0.0.1, or leave chaos out"
        )


# What `parse_sharding` takes: the numbers of a role's table.
SIZES = tuple(name for name in ReplicaConfig.__struct_fields__ if name != "hosts")


def load_deployment(path: Path | None, overrides: Mapping[str, Any]) -> DeploymentConfig:
    """Build a config from a TOML file and flag overrides, the flags winning key by key.

    Overrides that choose between mono and prefill with decode replace the file's choice.

    Args:
        path: Deployment file, or None for defaults.
        overrides: Nested plain values, spelled as in the file.

    Raises:
        ConfigError: Unreadable file, unknown key (with the nearest known one), wrong type, or
            values that contradict each other.
    """
    data = load_toml(path) if path is not None else {}
    build(DeploymentConfig, data, where=str(path))
    chosen = [name for name in ROLE_TABLES if name in overrides]
    if chosen:
        dropped = ("prefill", "decode") if "mono" in chosen else ("mono",)
        data = {key: value for key, value in data.items() if key not in dropped}
    merged = _merge(data, overrides)
    engine = merged.get("engine")
    if isinstance(engine, Mapping) and engine.get("device", "cpu") != "cpu":
        # The default of a CPU is none of a device; asked for, it is refused by name.
        merged["engine"] = {"exact": False, **engine}
    return build(DeploymentConfig, merged, where="flags")


def check_shardings(config: DeploymentConfig, model: ModelConfig) -> None:
    """Refuse, before anything is started, what the model cannot be split into.

    Raises:
        ShardingError: Names the role and the size at fault.
    """
    for role, replica in config.roles:
        sharding = replica.sharding(is_moe=model.num_experts > 0)
        check_sharding(
            sharding, role, num_kv_heads=model.num_kv_heads, num_experts=model.num_experts
        )
        for rank in range(sharding.num_ranks):
            shard_of(model, sharding, role, rank=rank)


def describe_shardings(config: DeploymentConfig, model: ModelConfig) -> str:
    """Return the resolved roles in one line, e.g. ``prefill tp=2,dp=1,ep=2 + decode ...``."""
    parts = []
    for role, replica in config.roles:
        sharding = replica.sharding(is_moe=model.num_experts > 0)
        times = f" x{replica.replicas}" if replica.replicas > 1 else ""
        parts.append(f"{role} {sharding}{times}")
    return " + ".join(parts)


def _merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        is_table = isinstance(value, Mapping) and isinstance(old, Mapping)
        merged[key] = _merge(old or {}, value) if is_table else value
    return merged


def num_ranks(config: DeploymentConfig, model: ModelConfig) -> int:
    """Return how many rank processes the deployment starts."""
    is_moe = model.num_experts > 0
    return sum(
        replica.sharding(is_moe=is_moe).num_ranks * replica.replicas for _, replica in config.roles
    )


def parse_sharding(text: str, *, where: str) -> dict[str, int]:
    """Parse ``tp=2,ep=2`` as the flags ``--prefill`` and ``--decode`` take it.

    Raises:
        ConfigError: Names the part that is not ``key=number``, or the unknown key.
    """
    sizes: dict[str, int] = {}
    for part in filter(None, text.split(",")):
        key, eq, value = part.partition("=")
        if not (eq and key.strip() and value.strip().isdigit()):
            raise ConfigError(f"{where} {text!r}: expected key=number pairs such as tp=2,ep=2")
        if key.strip() not in SIZES:
            hint = suggest(key.strip(), list(SIZES))
            raise ConfigError(f"{where} {text!r}: unknown key {key.strip()!r}; {hint}")
        if key.strip() in sizes:
            raise ConfigError(f"{where} {text!r}: {key.strip()} is given twice")
        sizes[key.strip()] = int(value)
    return sizes


def launch_specs(
    config: DeploymentConfig,
    *,
    deployment_id: str,
    run_dir: str,
    key: str,
    supervisor: str,
    model: str,
    is_moe: bool,
    addresses: Mapping[str, str] | None = None,
) -> list[LaunchSpec]:
    """Return one launch spec per rank, replicas in order, ranks in rank order.

    Args:
        config: The deployment.
        deployment_id: Prefix of every name that it leaves on the machine.
        run_dir: Private folder of its sockets.
        key: Hex of its control key.
        supervisor: Control address that ranks report to.
        model: Model folder or ``replay:FILE``, as ranks open it.
        is_moe: Whether the model has experts; decides what ``ep = 0`` means.
        addresses: Address of each host by name, ``here`` included, as the others reach it; None
            when all replicas are here.
    """
    planned = [
        _Plan(
            f"{role}{index}",
            role,
            replica.sharding(is_moe=is_moe),
            replica.engine(config.engine),
            replica.host_of(index),
        )
        for role, replica in config.roles
        for index in range(replica.replicas)
    ]
    faults = parse_chaos(config.chaos).writes
    on_host: Counter[str] = Counter()
    for plan in planned:
        on_host[plan.host] += plan.sharding.num_ranks
    return [
        LaunchSpec(
            deployment_id=deployment_id,
            run_dir=run_dir,
            key=key,
            model=model,
            replica=plan.name,
            role=plan.role,
            sharding=plan.sharding,
            rank=rank,
            generation=1,
            ranks_on_host=on_host[plan.host],
            supervisor=supervisor,
            transport=config.transport,
            faults=faults,
            host=(addresses or {}).get(plan.host, LOOPBACK),
            spans_hosts=addresses is not None,
            engine=plan.engine,
        )
        for plan in planned
        for rank in range(plan.sharding.num_ranks)
    ]


class _Plan(NamedTuple):
    """One replica to start."""

    name: str
    role: Role
    sharding: Sharding
    engine: EngineConfig
    host: str
