"""Renders a conversation with the model's own chat template, in a sandbox.

The template is data from a model folder and its inputs come from clients: it may read its
arguments and nothing else. What it offers to templates (``tojson`` without HTML escapes,
``raise_exception``, ``strftime_now``, ``break`` and ``continue``, ``generation`` blocks) is what
released templates expect of the reference library.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from headrace.core.errors import CheckpointError, RequestError

# What a template may raise when the client's messages are not what it expects. Anything else is
# a fault of this program and is not caught.
_RENDER_ERRORS = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
_TOKEN_NAMES = ("bos_token", "eos_token", "pad_token", "unk_token")


class ChatTemplate:
    """A model's chat templates, compiled. Immutable, so safe to share.

    Args:
        templates: Compiled templates by name; ``default`` is used unless tools ask for
            ``tool_use``. Empty for a model without one.
        variables: Special tokens by the names that templates use.
    """

    def __init__(
        self, templates: Mapping[str, jinja2.Template], variables: Mapping[str, str]
    ) -> None:
        self._templates = templates
        self._variables = variables

    @classmethod
    def open(cls, folder: Path, *, now: Callable[[], datetime] = datetime.now) -> ChatTemplate:
        """Read the template of a model folder.

        ``chat_template.jinja`` comes before the ``chat_template`` of ``tokenizer_config.json``,
        which may be one template or a list of named ones. None at all is no error here: a base
        model serves plain completions.

        Args:
            folder: The model folder.
            now: What ``strftime_now`` tells templates that state the date.

        Raises:
            CheckpointError: A file that does not parse.
        """
        config = _read_config(folder / "tokenizer_config.json")
        environment = _environment(now)
        templates = {
            name: _compile(environment, source, where=f"{folder}: chat template {name!r}")
            for name, source in _sources(folder, config).items()
        }
        return cls(templates, _special_tokens(config))

    @property
    def is_present(self) -> bool:
        """Whether the model has a chat template at all."""
        return bool(self._templates)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """Return the prompt text of a conversation.

        Args:
            messages: OpenAI's messages as plain values.
            tools: OpenAI's tools as plain values.
            add_generation_prompt: End with the header of the assistant's turn.
            variables: Further template variables, e.g. ``enable_thinking``. They cannot
                replace the arguments above.

        Raises:
            RequestError: The model has no template, or it refused these messages (status 400).
        """
        template = self._choose(bool(tools))
        try:
            return template.render(
                {
                    **self._variables,
                    "documents": None,
                    **(variables or {}),
                    "messages": messages,
                    "tools": tools or None,
                    "add_generation_prompt": add_generation_prompt,
                }
            )
        except _RENDER_ERRORS as error:
            raise RequestError(
                f"the model's chat template refused these messages: {error}", param="messages"
            ) from error

    def _choose(self, has_tools: bool) -> jinja2.Template:
        names = ("tool_use", "default") if has_tools else ("default",)
        for name in names:
            if name in self._templates:
                return self._templates[name]
        raise RequestError(
            "this model has no chat template: use /v1/completions, "
            "or add chat_template.jinja to its folder",
            param="messages",
        )


class _GenerationBlock(Extension):
    """Renders ``{% generation %}`` blocks, which mark the assistant's part for training."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Return the block's body in its place."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment(now: Callable[[], datetime]) -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[LoopControlExtension, _GenerationBlock]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda form: now().strftime(form)
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    *,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _compile(environment: jinja2.Environment, source: Any, *, where: str) -> jinja2.Template:
    if not isinstance(source, str):
        raise CheckpointError(f"{where}: expected text, came {type(source).__name__}")
    try:
        return environment.from_string(source)
    except jinja2.TemplateSyntaxError as error:
        raise CheckpointError(f"{where}, line {error.lineno}: {error.message}") from error


def _read_config(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        config = json.loads(_read_text(path))
    except json.JSONDecodeError as error:
        raise CheckpointError(f"{path}: not valid JSON: {error}") from error
    if not isinstance(config, dict):
        raise CheckpointError(f"{path}: expected an object, came {type(config).__name__}")
    return config


def _sources(folder: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    sources: dict[str, Any] = {}
    inline = config.get("chat_template")
    if isinstance(inline, list):
        for each in inline:
            if not isinstance(each, dict) or not {"name", "template"} <= each.keys():
                raise CheckpointError(
                    f"{folder}/tokenizer_config.json: chat_template is a list, whose entries "
                    f"need name and template; came {each!r:.80}"
                )
            sources[each["name"]] = each["template"]
    elif inline is not None:
        sources["default"] = inline
    path = folder / "chat_template.jinja"
    if path.is_file():
        sources["default"] = _read_text(path)
    for extra in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        sources[extra.stem] = _read_text(extra)
    return sources


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path}: not UTF-8 text: {error}") from error


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the special tokens that templates may name; absent ones stay undefined."""
    tokens: dict[str, str] = {}
    for name in _TOKEN_NAMES:
        value = config.get(name)
        value = value.get("content") if isinstance(value, dict) else value
        if isinstance(value, str):
            tokens[name] = value
    return tokens
