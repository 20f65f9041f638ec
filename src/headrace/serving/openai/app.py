"""The routes. Bodies are checked by our own code, so that every refusal has OpenAI's shape."""

from __future__ import annotations

import secrets
import time
from uuid import uuid4

from fastapi import FastAPI
from msgspec import Struct
from opentelemetry.trace import NoOpTracer, Tracer
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from headrace.core.errors import RequestError
from headrace.serving.fleet import Fleet
from headrace.serving.openai.answer import Answer
from headrace.serving.openai.bodies import ChatBody, CompletionBody
from headrace.serving.openai.config import ServedModel, ServingConfig
from headrace.serving.openai.dispatcher import Dispatcher
from headrace.serving.openai.errors import (
    json_response,
    on_crash,
    on_http_exception,
    on_request_error,
)
from headrace.serving.openai.exposition import CONTENT_TYPE, render
from headrace.serving.openai.gate import Gate
from headrace.serving.openai.inbox import Inbox
from headrace.serving.openai.lengths import longest_prompt, resolve_max_tokens
from headrace.serving.openai.metrics import ServingMetrics
from headrace.serving.openai.options import AnswerOptions
from headrace.serving.openai.parse import parse_body, read_body
from headrace.serving.openai.ports import ChatTemplate, Tokenizer
from headrace.serving.openai.prompts import chat_prompt, completion_prompts
from headrace.serving.openai.sampling import num_choices, sampling_params
from headrace.serving.openai.tracing import RequestTrace
from headrace.serving.openai.unsupported import refuse_unsupported


class Front(Struct, frozen=True, kw_only=True):
    """Everything that the routes use; built once by the CLI.

    Attributes:
        config: What the operator set.
        model: What the checkpoint says.
        tokenizer: Text to ids.
        template: Messages to text.
        dispatcher: Sends requests and routes outputs.
        fleet: Replicas, for readiness, limits and metrics.
        metrics: The dispatcher's own metrics object.
        tracer: Makes the spans of requests.
    """

    config: ServingConfig
    model: ServedModel
    tokenizer: Tokenizer
    template: ChatTemplate
    dispatcher: Dispatcher
    fleet: Fleet
    metrics: ServingMetrics
    tracer: Tracer = NoOpTracer()


def create_app(front: Front) -> ASGIApp:
    """Return the HTTP application: API key check and request ids around the routes.

    Interactive documentation is off: it would be a route without a key.
    """
    app = FastAPI(title="headrace", openapi_url=None, docs_url=None, redoc_url=None)
    app.add_exception_handler(RequestError, on_request_error)
    app.add_exception_handler(HTTPException, on_http_exception)
    app.add_exception_handler(Exception, on_crash)
    routes = _Routes(front)
    app.add_api_route("/health", routes.health, methods=["GET"])
    app.add_api_route("/ready", routes.ready, methods=["GET"])
    app.add_api_route("/metrics", routes.metrics, methods=["GET"])
    app.add_api_route("/v1/models", routes.models, methods=["GET"])
    app.add_api_route("/v1/models/{name:path}", routes.model, methods=["GET"])
    app.add_api_route("/v1/chat/completions", routes.chat, methods=["POST"])
    app.add_api_route("/v1/completions", routes.completions, methods=["POST"])
    return Gate(app, config=front.config, metrics=front.metrics)


class _Routes:
    def __init__(self, front: Front) -> None:
        self._front = front

    # -- state --------------------------------------------------------------------------------

    async def health(self) -> Response:
        """The process is alive and its event loop turns."""
        return json_response({"status": "ok"})

    async def ready(self) -> Response:
        """Every replica is alive and makes progress; otherwise 503 with the reason."""
        readiness = self._front.fleet.readiness()
        if not readiness.is_ready:
            raise RequestError(f"not ready: {readiness.reason}", status=503, code="not_ready")
        return json_response({"status": "ready"})

    async def metrics(self) -> Response:
        front = self._front
        text = render(front.metrics, front.fleet, num_calls=front.dispatcher.num_calls)
        return Response(text, media_type=CONTENT_TYPE)

    async def models(self) -> Response:
        return json_response({"object": "list", "data": [self._card()]})

    async def model(self, name: str) -> Response:
        self._check_model(name)
        return json_response(self._card())

    def _card(self) -> dict[str, object]:
        model = self._front.model
        return {
            "id": model.name,
            "object": "model",
            "created": model.created_s,
            "owned_by": "headrace",
        }

    def _check_model(self, name: str) -> None:
        model = self._front.model.name
        if name != model:
            raise RequestError(
                f"the model {name!r} does not exist: this server serves {model!r}",
                param="model",
                status=404,
                code="model_not_found",
            )

    # -- generation ---------------------------------------------------------------------------

    async def chat(self, request: Request) -> Response:
        front, arrived_ns = self._front, time.time_ns()
        data = await self._read(request)
        body = parse_body(data, ChatBody)
        self._check_model(body.model)
        refuse_unsupported(body)
        prompt = await chat_prompt(
            body,
            front.template,
            front.tokenizer,
            longest=self._longest_prompt(),
            in_thread=len(data) > front.config.executor_bytes,
        )
        return self._generate(body, [prompt], request, arrived_ns)

    async def completions(self, request: Request) -> Response:
        front, arrived_ns = self._front, time.time_ns()
        data = await self._read(request)
        body = parse_body(data, CompletionBody)
        self._check_model(body.model)
        refuse_unsupported(body)
        prompts = await completion_prompts(
            body,
            front.tokenizer,
            vocab_size=front.model.vocab_size,
            longest=self._longest_prompt(),
            in_thread=len(data) > front.config.executor_bytes,
        )
        return self._generate(body, prompts, request, arrived_ns)

    async def _read(self, request: Request) -> bytes:
        return await read_body(request, max_bytes=self._front.config.max_body_mib << 20)

    def _longest_prompt(self) -> int:
        front = self._front
        return longest_prompt(front.model, front.fleet.limits(), front.config)

    def _generate(
        self,
        body: ChatBody | CompletionBody,
        prompts: list[list[int]],
        request: Request,
        arrived_ns: int,
    ) -> Answer:
        front = self._front
        path = request.url.path
        trace = RequestTrace(front.tracer, path, request.headers, arrived_ns=arrived_ns)
        inbox = front.dispatcher.open()
        try:
            self._submit(body, prompts, inbox=inbox)
        except BaseException as error:
            trace.refuse(str(error))
            inbox.close()
            raise
        options = self._options(body, prompts)
        trace.note_submitted(
            answer_id=options.answer_id, model=options.model, prompt_tokens=options.prompt_tokens
        )
        return Answer(inbox, options, tokenizer=front.tokenizer, metrics=front.metrics, trace=trace)

    def _submit(
        self, body: ChatBody | CompletionBody, prompts: list[list[int]], *, inbox: Inbox
    ) -> None:
        front = self._front
        most = max(1, front.config.max_choices // len(prompts))
        # All choices of a prompt share its KV, so one decode rank runs them.
        n = num_choices(body, limit=min(most, front.model.max_sequences or most))
        if n * len(prompts) > front.config.max_choices:
            raise RequestError(
                f"{len(prompts)} prompts: expected at most {front.config.max_choices}",
                param="prompt",
            )
        limits, seed = front.fleet.limits(), secrets.randbits(63)
        # All are checked before any is sent: a refusal costs nothing anywhere.
        checked = [
            sampling_params(
                body,
                front.model,
                fallback_seed=seed,
                max_tokens=resolve_max_tokens(
                    body, len(prompt), model=front.model, limits=limits, config=front.config
                ),
            )
            for prompt in prompts
        ]
        for prompt, params in zip(prompts, checked, strict=True):
            front.dispatcher.submit(inbox, prompt, params, num_choices=n)

    def _options(self, body: ChatBody | CompletionBody, prompts: list[list[int]]) -> AnswerOptions:
        is_chat = isinstance(body, ChatBody)
        echo: list[str] = []
        if isinstance(body, CompletionBody) and body.echo:
            decode = self._front.tokenizer.decode
            texts = [decode(prompt, skip_special_tokens=False) for prompt in prompts]
            echo = [text for text in texts for _ in range(body.n or 1)]
        return AnswerOptions(
            is_chat=is_chat,
            answer_id=f"{'chatcmpl' if is_chat else 'cmpl'}-{uuid4().hex}",
            created_s=int(time.time()),
            model=self._front.model.name,
            prompt_tokens=sum(map(len, prompts)),
            choices_per_prompt=body.n or 1,
            is_stream=bool(body.stream),
            include_usage=bool(body.stream_options and body.stream_options.include_usage),
            has_logprobs=body.logprobs is not None and body.logprobs is not False,
            return_ledger=bool(body.return_ledger),
            return_token_ids=bool(body.return_token_ids),
            echo=echo,
        )
