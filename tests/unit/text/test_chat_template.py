"""Templates see what released ones expect, and can neither escape nor crash the server."""

import json
from datetime import datetime
from pathlib import Path

import pytest

from headrace.core.errors import CheckpointError, RequestError
from headrace.text.chat_template import ChatTemplate

HELLO = [{"role": "user", "content": "hi"}]
CHATML = """
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""


def template_of(tmp_path: Path, source: str, **config: object) -> ChatTemplate:
    (tmp_path / "chat_template.jinja").write_text(source, encoding="utf-8")
    if config:
        write_config(tmp_path, **config)
    return ChatTemplate.open(tmp_path, now=lambda: datetime(2026, 2, 3))


def write_config(folder: Path, **config: object) -> None:
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")


def test_a_conversation_is_rendered_with_the_assistants_turn_opened(tmp_path: Path):
    template = template_of(tmp_path, CHATML)
    turn = "<|im_start|>user\nhi<|im_end|>\n"
    assert template.render(HELLO) == turn + "<|im_start|>assistant\n"
    assert template.render(HELLO, add_generation_prompt=False) == turn


def test_template_variables_of_the_request_reach_the_template(tmp_path: Path):
    template = template_of(tmp_path, CHATML)
    text = template.render(HELLO, variables={"enable_thinking": False})
    assert text.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")


def test_template_variables_cannot_replace_the_conversation(tmp_path: Path):
    template = template_of(tmp_path, "{{ messages[0].content }}")
    assert template.render(HELLO, variables={"messages": [{"content": "forged"}]}) == "hi"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ {'a': '<b> & \"c\" \u00e9'} | tojson }}", '{"a": "<b> & \\"c\\" \u00e9"}'),
        ("{{ {'b': 1, 'a': 2} | tojson }}", '{"b": 1, "a": 2}'),
        ("{{ [1] | tojson(indent=1) }}", "[\n 1\n]"),
        ("{{ '\u00e9' | tojson(ensure_ascii=True) }}", '"\\u00e9"'),
        ("{{ {'b': 1, 'a': [1, 2]} | tojson(separators=(',', ':'), sort_keys=True) }}",
         '{"a":[1,2],"b":1}'),
        ("{{ messages[0].content }}\n", "hi"),
        ("{{ strftime_now('%d %b %Y') }}", "03 Feb 2026"),
        ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
        ("a{% generation %}b{{ messages[0].role }}{% endgeneration %}c", "abuserc"),
        ("  {% if true %}\nx\n  {% endif %}\ny", "x\ny"),
        ("{% set ns = namespace(n=0) %}{% set ns.n = 3 %}{{ ns.n }}", "3"),
        ("{{ tools is none }}{{ documents is none }}{{ missing is defined }}", "TrueTrueFalse"),
    ],
    ids=range(12),
)  # fmt: skip
def test_templates_see_what_the_reference_library_offers(tmp_path, source, expected):
    assert template_of(tmp_path, source).render(HELLO) == expected


def test_special_tokens_have_their_names(tmp_path: Path):
    template = template_of(
        tmp_path,
        "{{ bos_token }}{{ eos_token }}{{ pad_token is defined }}",
        bos_token={"content": "<s>", "lstrip": False},
        eos_token="</s>",
        pad_token=None,
    )
    assert template.render(HELLO) == "<s></s>False"


def test_tools_reach_the_template_and_none_means_none(tmp_path: Path):
    template = template_of(tmp_path, "{% if tools %}{{ tools[0].function.name }}{% endif %}")
    tools = [{"type": "function", "function": {"name": "add"}}]
    assert template.render(HELLO, tools=tools) == "add"
    assert template.render(HELLO, tools=[]) == ""


def test_named_templates_are_chosen_by_tools(tmp_path: Path):
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
    write_config(tmp_path, chat_template=named)
    template = ChatTemplate.open(tmp_path)
    assert template.render(HELLO) == "plain"
    assert template.render(HELLO, tools=[{}]) == "tools"


def test_the_template_file_comes_before_the_tokenizer_config(tmp_path: Path):
    write_config(tmp_path, chat_template="inline")
    assert ChatTemplate.open(tmp_path).render(HELLO) == "inline"
    assert template_of(tmp_path, "file").render(HELLO) == "file"


def test_additional_template_files_are_read(tmp_path: Path):
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("tools")
    assert template_of(tmp_path, "plain").render(HELLO, tools=[{}]) == "tools"


def test_a_model_without_a_template_serves_no_chat(tmp_path: Path):
    template = ChatTemplate.open(tmp_path)
    assert not template.is_present
    with pytest.raises(RequestError, match="use /v1/completions") as caught:
        template.render(HELLO)
    assert (caught.value.status, caught.value.param) == (400, "messages")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[0].content + 1 }}", "str"),
        ("{{ messages[0].nothing.more }}", "nothing"),
        ("{{ messages[5].content.x }}", "no element"),
        ("{{ 1 / 0 }}", "zero"),
        ("{{ messages[0].content.index('x') }}", "substring"),
        ("{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}", "recursion"),
        ("{{ range(999999999) }}", "[Rr]ange"),
        ("{{ messages.append(1) }}", "(?i)unsafe|not safely"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "(?i)unsafe"),
    ],
    ids=range(10),
)
def test_what_a_template_refuses_is_the_requests_fault(tmp_path, source, message):
    template = template_of(tmp_path, source)
    with pytest.raises(RequestError, match=message) as caught:
        template.render(HELLO)
    assert (caught.value.status, caught.value.param) == (400, "messages")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ('{"chat_template": "{% if %}"}', "chat template 'default', line 1"),
        ('{"chat_template": 5}', "expected text, came int"),
        ('{"chat_template": [{"name": "default"}]}', "need name and template"),
        ('{"chat_template": ', "not valid JSON"),
        ("[]", "expected an object, came list"),
    ],
    ids=range(5),
)
def test_an_unusable_template_is_refused_when_the_folder_is_read(tmp_path, config, message):
    (tmp_path / "tokenizer_config.json").write_text(config, encoding="utf-8")
    with pytest.raises(CheckpointError, match=message):
        ChatTemplate.open(tmp_path)


def test_a_template_that_is_not_text_is_refused(tmp_path: Path):
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(CheckpointError, match="not UTF-8"):
        ChatTemplate.open(tmp_path)
