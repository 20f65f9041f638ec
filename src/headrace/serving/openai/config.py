"""What the operator sets, and what the checkpoint says about how it wants to be sampled."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from headrace.core.errors import CheckpointError, ConfigError


class ServingConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The HTTP front.

    Attributes:
        host: Address to listen on; loopback unless asked otherwise.
        port: Port to listen on; 0 takes a free one.
        model_name: Name that clients use; empty takes the checkpoint folder's.
        api_keys: Accepted bearer keys; empty lets everybody in.
        is_metrics_open: ``/metrics`` needs no key.
        max_body_mib: Largest request body [MiB].
        max_requests: Requests in flight at most; more are answered 503.
        max_choices: Sequences of one HTTP request at most (prompts times ``n``).
        max_backlog: Outputs of one request that may wait for a slow reader before it is aborted.
        max_prompt_tokens: Longest prompt [tokens]; 0 takes the replicas' limit.
        executor_bytes: Bodies longer than this are tokenized in a worker thread [bytes].
        deadline_s: Transfer time without progress after which a request is given up, and longest
            wait of a request that lost its decode rank for a replica to be up [s].
        max_retries: Times that a request is begun again after its decode rank was lost or its KV
            did not come; then it ends with an error.
        shutdown_s: Time that open streams get to end when the server stops [s].
        otlp_endpoint: OTLP collector over HTTP that traces are sent to, such as
            ``http://localhost:4318``; empty leaves it to the ``OTEL_EXPORTER_OTLP_`` variables.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    model_name: str = ""
    api_keys: tuple[str, ...] = ()
    is_metrics_open: bool = False
    max_body_mib: int = 16
    max_requests: int = 1024
    max_choices: int = 128
    max_backlog: int = 16384
    max_prompt_tokens: int = 0
    executor_bytes: int = 8192
    deadline_s: float = 30.0
    max_retries: int = 2
    shutdown_s: float = 3.0
    otlp_endpoint: str = ""

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"port={self.port}: expected 0 to 65535")
        if any(not key for key in self.api_keys):
            raise ConfigError("api_keys: an empty key would let everybody in; leave it out")
        if self.otlp_endpoint and not self.otlp_endpoint.startswith(("http://", "https://")):
            raise ConfigError(
                f"otlp_endpoint={self.otlp_endpoint!r}: expected the address of a collector, such "
                f"as http://localhost:4318"
            )
        for name in ("max_body_mib", "max_requests", "max_choices", "max_backlog"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)}: expected at least 1")
        if self.max_retries < 0:
            raise ConfigError(f"max_retries={self.max_retries}: expected 0 or more")
        for name in ("deadline_s", "shutdown_s"):
            if not getattr(self, name) > 0.0:
                raise ConfigError(f"{name}={getattr(self, name)}: expected more than 0 seconds")


class SamplingDefaults(Struct, frozen=True, kw_only=True):
    """Values for fields that a request leaves out.

    The checkpoint's ``generation_config.json`` decides, as is usual for Qwen models, whose
    quality depends on their recommended values; a field it lacks keeps OpenAI's default.
    ``do_sample: false`` means greedy.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0

    @staticmethod
    def from_generation_config(data: Mapping[str, Any]) -> SamplingDefaults:
        """Read the sampling keys of a ``generation_config.json``; other keys are not ours.

        Raises:
            CheckpointError: A value that is not a number, or no possible one.
        """
        values: dict[str, Any] = {}
        for name in SamplingDefaults.__struct_fields__:
            value = data.get(name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise CheckpointError(
                    f"generation_config.json: {name}={value!r}: expected a number"
                )
            values[name] = int(value) if name == "top_k" else float(value)
            if not _is_possible(name, values[name]):
                raise CheckpointError(f"generation_config.json: {name}={value!r} cannot be")
        if data.get("do_sample") is False:
            values["temperature"] = 0.0
        return SamplingDefaults(**values)


def _is_possible(name: str, value: float) -> bool:
    # What a request may ask for, so that no default is worse than any request.
    if not math.isfinite(value):
        return False
    if name in ("top_p", "min_p"):
        return 0.0 <= value <= 1.0 and (value > 0.0 or name == "min_p")
    return {"temperature": value >= 0.0, "repetition_penalty": value > 0.0}.get(name, value >= -1)


class ServedModel(Struct, frozen=True, kw_only=True):
    """What the front must know of the model.

    Attributes:
        name: Name that clients use.
        vocab_size: Token ids lie below this (rows of the output head, not of the tokenizer).
        created_s: Unix time shown in ``/v1/models`` [s].
        max_model_tokens: Prompt plus output at most [tokens]; 0 takes the replicas' limit.
        max_sequences: Sequences that one decode rank holds, and ``n`` at most; 0 is unknown.
        defaults: Sampling values for fields that a request leaves out.
    """

    name: str
    vocab_size: int
    created_s: int = 0
    max_model_tokens: int = 0
    max_sequences: int = 0
    defaults: SamplingDefaults = SamplingDefaults()
