"""Every message between processes. ``core.codec`` carries them."""

from __future__ import annotations

from msgspec import Struct, field

from headrace.core.layouts import CacheLayout
from headrace.core.plans import Chunk
from headrace.core.requests import FinishReason, Ledger, SamplingParams
from headrace.core.sharding import Role, Sharding


class RegionDescriptor(Struct, frozen=True, kw_only=True):
    """Serializable address of a registered region, minted anew for each generation.

    Attributes:
        transport: Transport that serves it.
        name: What a peer opens (``shm``: the segment's file name).
        doorbell: Where immediates for the owner are delivered.
        rank: Owner's index in its replica.
        generation: Owner's generation; a write under another one is refused.
        num_bytes: Length of the region.
        layout: What lies in it.
    """

    transport: str
    name: str
    doorbell: str
    rank: int
    generation: int
    num_bytes: int
    layout: CacheLayout


class Message(Struct, kw_only=True, tag=True):
    """Base of all messages; ``tag`` is the class name on the wire."""


# -- edge to decode rank ---------------------------------------------------------------------


class Resumed(Struct, frozen=True, kw_only=True):
    """A choice that goes on where its client is, after its decode rank was lost.

    Attributes:
        choice: Index among the request's choices.
        output_ids: Output tokens that the client has; the next one sampled follows them.
        ledger: The record of what they cost, as far as the lost rank had told it.
    """

    choice: int
    output_ids: list[int]
    ledger: Ledger = field(default_factory=Ledger)


class Submit(Message):
    """A validated request for a decode or mono rank.

    Attributes:
        request_id: Unique inside the deployment, made by the edge; never the client's id.
        reply_to: Control address that outputs go to.
        prompt_ids: Prompt token ids, at least one.
        params: Sampling of choice 0; choice i uses noise keyed by (seed, i).
        num_choices: How many sequences continue the prompt.
        prefill_replica: Replica chosen by the router; empty when there is none.
        ordinal: Running number of the request at its edge (the replay back end plays by it).
        deadline_s: Seconds without progress after which a transfer is given up.
        trace: Send raw logits and KV digests along: ``verify`` compares deployments so.
        resumed: Choices unfinished when the last rank was lost; empty for a new request.
        num_retries: How often the request was begun again, wherever the fault was.
        max_retries: How often it may be at most.
    """

    request_id: str
    reply_to: str
    prompt_ids: list[int]
    params: SamplingParams
    num_choices: int = 1
    prefill_replica: str = ""
    ordinal: int = 0
    deadline_s: float = 30.0
    trace: bool = False
    resumed: list[Resumed] = []
    num_retries: int = 0
    max_retries: int = 2


class Abort(Message):
    """The client is gone or the edge gave up: free everything within a step."""

    request_id: str


class TokenLogprob(Struct, frozen=True):
    """Log-probability of one output token and of the best alternatives, best first."""

    token_id: int
    logprob: float
    top: list[tuple[int, float]]


class Trace(Struct, frozen=True, kw_only=True):
    """What a step computed, in a form that does not depend on the sharding.

    Attributes:
        logits: Raw fp32 logits of the step's row, native byte order.
        kv_digests: Per model layer, one digest for each run of 16 tokens of the sequence's KV so
            far (all heads, K then V).
    """

    logits: bytes
    kv_digests: list[list[bytes]]


class Output(Struct, frozen=True, kw_only=True):
    """What one step added to one choice of a request.

    ``text`` is safe to show: whole characters only, and never part of a stop string. ``ledger``
    comes with the last output, and with the first after each start so that it outlives the rank.
    """

    request_id: str
    choice: int
    token_ids: list[int]
    text: str = ""
    logprobs: list[TokenLogprob] | None = None
    finish_reason: FinishReason | None = None
    ledger: Ledger | None = None
    error: str = ""
    trace: Trace | None = None


class Outputs(Message):
    """All outputs of one step for one edge."""

    rank: int
    outputs: list[Output]


# -- decode rank to prefill replica and back -------------------------------------------------


class PrefillRequest(Message):
    """Ask a prefill replica for the KV of ``[start, len(token_ids) - 1)``.

    The last token's id is given (a prefiller fills MTP slots with it) but its KV is not computed.

    Attributes:
        session_id: Names the transfer; unique inside the decoder's generation.
        imm: Immediate that every write of this session delivers.
        reply_to: Decode rank's control address.
        token_ids: The whole prompt (or prompt + output after a preemption).
        start: Tokens that the decoder already has [tokens].
        block_ids: Destination blocks, for the prompt from position 0.
        target: Decode rank's region.
        ordinal: See ``Submit``.
    """

    session_id: str
    imm: int
    reply_to: str
    token_ids: list[int]
    start: int
    block_ids: list[int]
    target: RegionDescriptor
    ordinal: int = 0


class CancelSession(Message):
    """Stop new writes of a session, drain pending ones, then say quiet from every rank."""

    session_id: str
    reply_to: str


class SessionQuiet(Message):
    """One prefill rank will never write for this session again (or already never did)."""

    session_id: str
    rank: int
    generation: int


class SessionFailed(Message):
    """One prefill rank could not do its part; it is quiet too, or says so separately.

    ``is_final`` says that no other replica of its kind could do better: a retry is in vain.
    """

    session_id: str
    rank: int
    generation: int
    reason: str
    is_final: bool = False


class SessionStarted(Message):
    """The prefill replica gave the session blocks; sent before any of its KV.

    ``cached_tokens`` of the prompt had KV there already, after ``queue_s`` in the line.
    """

    session_id: str
    cached_tokens: int
    queue_s: float


class SessionDone(Message):
    """The replica computed all KV, in ``compute_s`` of steps; sent before the last of it."""

    session_id: str
    compute_s: float


# -- inside a prefill replica: lead to followers ---------------------------------------------


class SequenceStep(Struct, frozen=True, kw_only=True):
    """One chunk of a sequence as every rank of a TP group must run it."""

    chunk: Chunk
    token_ids: list[int]
    block_ids: list[int]


class RunStep(Message):
    """Lead's order to its followers; all ranks run equal steps in equal order."""

    step: int
    sequences: list[SequenceStep]


class OpenSend(Message):
    """A follower shall take part in a session; ``block_ids`` are the replica's own blocks.

    ``cached_tokens`` are the prefiller's tokens that exist before the first chunk.
    """

    request: PrefillRequest
    block_ids: list[int]
    cached_tokens: int


class SendDone(Message):
    """Follower to lead: all writes of this rank for the session are complete or drained."""

    session_id: str
    rank: int


# -- life of a replica -----------------------------------------------------------------------


class RankInfo(Struct, frozen=True, kw_only=True):
    """One rank as its peers address it."""

    rank: int
    generation: int
    address: str


class ReplicaInfo(Struct, frozen=True, kw_only=True):
    """One replica as the topology knows it.

    Attributes:
        name: Unique in the deployment.
        role: What it does.
        sharding: How it is split.
        ranks: In rank order, every rank whose generation may still write somewhere. A rank that
            is missing, or listed under a later generation, is known to be quiet for good.
        is_up: All ranks are there and may be given work; False while the replica re-forms.
    """

    name: str
    role: Role
    sharding: Sharding
    ranks: list[RankInfo]
    is_up: bool = True


class Topology(Message):
    """All replicas; replaces what was known before."""

    replicas: list[ReplicaInfo]


class LoadProgress(Message):
    """How far a rank's start is: ``done_bytes`` of weights out of ``total_bytes``."""

    replica: str
    rank: int
    done_bytes: int
    total_bytes: int


class Ready(Message):
    """A rank loaded its weights and opened its region; sent to the supervisor."""

    replica: str
    info: RankInfo
    num_blocks: int
    block_size: int
    max_tokens: int


class Heartbeat(Message):
    """Sign of life and load of one rank. ``progress`` grows whenever work got done.

    Attributes:
        replica: Replica's name.
        info: Who speaks; a stale generation is refused.
        progress: Steps run plus sessions ended; unchanged with work pending means stuck.
        has_work: The rank holds unfinished requests.
        num_running: Sequences being decoded or prefilled.
        num_waiting: Requests not yet admitted.
        free_blocks: Blocks that can be handed out.
        total_blocks: Blocks of the pool.
        counters: By Prometheus name; those that end in ``_total`` only grow.
    """

    replica: str
    info: RankInfo
    progress: int
    has_work: bool
    num_running: int = 0
    num_waiting: int = 0
    free_blocks: int = 0
    total_blocks: int = 0
    counters: dict[str, float] = {}


class Wake(Message):
    """A rank of an idle lockstep group has work: join step ``step``."""

    step: int


class Failed(Message):
    """A rank could not start or cannot go on; one clear line."""

    replica: str
    rank: int
    error: str
    is_user_error: bool = False


class Broken(Message):
    """A rank left its generation: its group broke, and it waits for ``Reform``, or this came.

    It holds its weights, and nothing of the generation any more: no mapping, no session. It waits
    at ``address``.
    """

    replica: str
    rank: int
    generation: int
    error: str
    address: str = ""


class Reform(Message):
    """Supervisor to a surviving rank: leave your generation, keep the weights, be ``generation``.

    The rank closes all that belongs to the old generation, opens what belongs to the new one and
    says ``Ready`` under it, which proves that the old one will never write again.
    """

    generation: int


class Shutdown(Message):
    """Finish the step at hand and leave, releasing everything."""


AnyMessage = (
    Submit
    | Abort
    | Outputs
    | PrefillRequest
    | CancelSession
    | SessionQuiet
    | SessionFailed
    | SessionStarted
    | SessionDone
    | RunStep
    | OpenSend
    | SendDone
    | Topology
    | LoadProgress
    | Ready
    | Heartbeat
    | Wake
    | Failed
    | Broken
    | Reform
    | Shutdown
)
