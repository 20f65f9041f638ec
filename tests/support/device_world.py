"""A mono rank over the plain stepper or a device's, on the CPU, driven step by step."""

from __future__ import annotations

from pathlib import Path

import msgspec

from headrace.cli.verify_compare import Run
from headrace.comm.group import SingleGroup
from headrace.core.clock import SystemClock
from headrace.core.launch import EngineConfig
from headrace.core.layouts import CacheLayout, KvSchema
from headrace.core.messages import Message, Output, Outputs, Submit
from headrace.core.requests import FinishReason, Ledger, SamplingParams
from headrace.core.sharding import Role
from headrace.engine.decode import DecodeRank
from headrace.engine.device.backend import DeviceBackend
from headrace.engine.device.load import load_device
from headrace.engine.device.stepper import DeviceStepper
from headrace.engine.device.streams import open_track
from headrace.engine.emitter import Emitter
from headrace.engine.lane import PrefillLane, Track
from headrace.engine.load import load_backend
from headrace.engine.stepper import AnyStepper, Stepper
from headrace.kvcache.pool import BlockPool
from headrace.models.checkpoint.folder import read_config
from headrace.scheduler.admission import Limits
from headrace.text.tokenizer import Tokenizer
from tests.support.engine_specs import make_spec

MAX_TOKENS = 96
ENGINE = EngineConfig(dtype="float32", exact=False, max_step_tokens=16, max_sequences=6)


class World:
    """A mono rank over either stepper, with its outputs by request."""

    def __init__(
        self,
        folder: Path,
        *,
        is_device: bool,
        num_blocks: int = 64,
        track: tuple[Track, PrefillLane] | None = None,
        engine: EngineConfig = ENGINE,
    ) -> None:
        self.outputs: dict[str, list[Output]] = {}
        self.pool = BlockPool(num_blocks, engine.block_size, prefix_cache=True)
        self.stepper = (
            _device_stepper(folder, engine, num_blocks=num_blocks, track=track)
            if is_device
            else _plain_stepper(folder, engine, num_blocks)
        )
        self.rank = DecodeRank(
            config=engine,
            pool=self.pool,
            stepper=self.stepper,
            receiving=None,
            emitter=Emitter(
                rank=0, eos_token_ids=(0,), max_model_tokens=MAX_TOKENS, send=self._keep
            ),
            tokenizer=Tokenizer.open(folder),
            clock=SystemClock(),
            limits=Limits(
                max_model_tokens=MAX_TOKENS,
                num_blocks=num_blocks,
                block_size=engine.block_size,
                max_sequences=6,
            ),
        )

    def submit(
        self, request_id: str, params: SamplingParams, *, length: int = 21, trace: bool = False
    ) -> list[int]:
        start = sum(map(ord, request_id))
        prompt = [(start + index * 37) % 250 for index in range(length)]
        self.submit_ids(request_id, prompt, params, trace=trace)
        return prompt

    def submit_ids(
        self, request_id: str, prompt: list[int], params: SamplingParams, *, trace: bool = False
    ) -> None:
        self.outputs[request_id] = []
        self.rank.submit(
            Submit(
                request_id=request_id,
                reply_to="edge",
                prompt_ids=prompt,
                params=params,
                trace=trace,
            )
        )

    def step(self, times: int = 1) -> None:
        for _ in range(times):
            self.rank.advance()
            if self.rank.wants_step:
                self.rank.step()
            self.pool.check_invariants()

    def drain(self) -> None:
        for _ in range(500):
            if not self.rank.has_work:
                return
            self.step()
        raise AssertionError("did not drain")

    def tokens(self) -> dict[str, list[int]]:
        return {
            request_id: [token for output in outputs for token in output.token_ids]
            for request_id, outputs in self.outputs.items()
        }

    def run_of(self, request_id: str) -> Run:
        """Return what ``verify`` makes of a request's outputs, all of them traced."""
        outputs = self.outputs[request_id]
        traces = [output.trace for output in outputs if output.trace is not None]
        assert len(traces) == len(outputs)
        return Run(
            token_ids=self.tokens()[request_id],
            logits=[trace.logits for trace in traces],
            kv_digests=[trace.kv_digests for trace in traces],
            ledger=outputs[-1].ledger or Ledger(),
        )

    def reasons(self) -> dict[str, FinishReason | None]:
        return {key: outputs[-1].finish_reason for key, outputs in self.outputs.items()}

    def _keep(self, address: str, message: Message) -> bool:
        assert isinstance(message, Outputs)
        for output in message.outputs:
            self.outputs[output.request_id].append(output)
        return True


def _plain_stepper(folder: Path, engine: EngineConfig, num_blocks: int) -> AnyStepper:
    spec = make_spec(folder, folder, Role.MONO, engine=engine)
    backend = load_backend(spec, SingleGroup(), lambda done, total: None).backend
    layout = _layout(backend.schemas, engine, num_blocks)
    region = memoryview(bytearray(layout.num_bytes))
    backend.attach(region, num_blocks=num_blocks, block_size=engine.block_size)
    return Stepper(backend)


def _device_stepper(
    folder: Path,
    engine: EngineConfig,
    *,
    num_blocks: int,
    track: tuple[Track, PrefillLane] | None,
) -> AnyStepper:
    backend = load_device(folder, read_config(folder), engine, max_tokens=MAX_TOKENS)
    backend.allocate(_layout(backend.schemas, engine, num_blocks))
    track = track or open_track(
        backend.device,
        overlaps=engine.overlap_prefill,
        max_step_tokens=engine.max_step_tokens,
    )
    stepper = DeviceStepper(backend, max_rows=6, max_tokens=MAX_TOKENS, track=track)
    stepper.warm_up()
    return stepper


def _layout(schemas: tuple[KvSchema, ...], engine: EngineConfig, num_blocks: int) -> CacheLayout:
    return CacheLayout(
        layers=schemas,
        first_head=0,
        num_heads=4,
        num_blocks=num_blocks,
        block_size=engine.block_size,
    )


def narrow_engine(engine: EngineConfig = ENGINE) -> EngineConfig:
    """Return an engine of an 8-bit pool that is on the CPU, which no user can ask for."""
    engine = msgspec.structs.replace(engine)
    msgspec.structs.force_setattr(engine, "kv_dtype", "fp8")
    return engine


def narrow_layout(backend: DeviceBackend, *, num_blocks: int = 8) -> CacheLayout:
    """Return a small layout for a backend's schemas."""
    return _layout(backend.schemas, ENGINE, num_blocks)
