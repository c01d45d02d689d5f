"""Chat templates, written as those of the models that are read, against transformers' `apply_chat_template`."""

from __future__ import annotations

import re
from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from webtorch.llm.template import TemplateError, render

NAMES = {"bos_token": "<s>", "eos_token": "</s>"}
TOOLS: list[Any] = [
    {"type": "function", "function": {
        "name": "weather", "description": "The weather of \u00e9t\u00e9 <b>&</b>.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    }},
]  # fmt: skip
CALL = {"type": "function", "function": {"name": "weather", "arguments": {"city": "Paris"}}}
TALKS: dict[str, list[dict[str, Any]]] = {
    "a question": [{"role": "user", "content": "  Hi & <you>\n"}],
    "a system": [{"role": "system", "content": "Be short. "}, {"role": "user", "content": "\u00e9"}],
    "a talk": [
        {"role": "user", "content": "a"}, {"role": "assistant", "content": "<think>\nx\n</think>\n\nb"},
        {"role": "user", "content": "c"}, {"role": "assistant", "content": "d"}, {"role": "user", "content": "e"},
    ],
    "a call": [
        {"role": "user", "content": "a"}, {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "name": "weather", "content": "rain"}, {"role": "user", "content": "so?"},
    ],
    "two answers": [{"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}],
}  # fmt: skip
TEMPLATES = {
    "llama, mistral of version 2": """{% if messages[0]['role'] == 'system' %}{% set rest = messages[1:] %}
{% set told = messages[0]['content'] %}{% else %}{% set rest = messages %}{% set told = false %}{% endif %}
{% for m in rest %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('roles must take turns') }}{% endif %}
{% if loop.index0 == 0 and told != false %}{% set text = '<<SYS>>\\n' + told + '\\n<</SYS>>\\n\\n' + m['content'] %}
{% else %}{% set text = m['content'] %}{% endif %}
{% if m['role'] == 'user' %}{{ bos_token + '[INST] ' + text.strip() + ' [/INST]' }}
{% elif m['role'] == 'assistant' %}{{ ' ' + text.strip() + ' ' + eos_token }}{% endif %}{% endfor %}""",
    "mistral with tools": """{%- if messages[0]["role"] == "system" %}{%- set system = messages[0]["content"] %}
{%- set loop_messages = messages[1:] %}{%- else %}{%- set loop_messages = messages %}{%- endif %}
{%- if not tools is defined %}{%- set tools = none %}{%- endif %}
{%- set users = loop_messages | selectattr("role", "equalto", "user") | list %}
{%- set ns = namespace() %}{%- set ns.index = 0 %}
{%- for m in loop_messages %}
  {%- if not (m.role == "tool" or (m.tool_calls is defined and m.tool_calls is not none)) %}
    {%- if (m["role"] == "user") != (ns.index % 2 == 0) %}{{- raise_exception("turns") }}{%- endif %}
    {%- set ns.index = ns.index + 1 %}
  {%- endif %}
{%- endfor %}{{- bos_token }}
{%- for m in loop_messages %}
  {%- if m["role"] == "user" %}
    {%- if tools is not none and (m == users[-1]) %}{{- "[AVAILABLE_TOOLS] [" }}
      {%- for tool in tools %}{%- set tool = tool.function %}{{- '{"type": "function", "function": {' }}
        {%- for key, val in tool.items() if key != "return" %}
          {%- if val is string %}{{- '"' + key + '": "' + val + '"' }}
          {%- else %}{{- '"' + key + '": ' + val|tojson }}{%- endif %}
          {%- if not loop.last %}{{- ", " }}{%- endif %}
        {%- endfor %}{{- "}}" }}{%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" }}{%- endif %}
      {%- endfor %}{{- "[/AVAILABLE_TOOLS]" }}
    {%- endif %}{{- "[INST] " + m["content"] + "[/INST]" }}
  {%- elif m.tool_calls is defined and m.tool_calls is not none %}{{- "[TOOL_CALLS] " + (m.tool_calls|tojson) }}
  {%- elif m["role"] == "assistant" %}{{- " " + m["content"]|trim + eos_token}}
  {%- endif %}
{%- endfor %}""",
    "llama3": """{{- bos_token }}{%- if not date_string is defined %}
{%- if strftime_now is defined %}{%- set date_string = strftime_now("%d %b %Y") %}{%- else %}
{%- set date_string = "26 Jul 2024" %}{%- endif %}{%- endif %}{%- if not tools is defined %}{%- set tools = none %}
{%- endif %}{%- if custom_tools is defined %}{%- set tools = custom_tools %}{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}{%- if tools is not none %}{{- "Environment: ipython\\n" }}
{%- endif %}{{- "Today Date: " + date_string + "\\n\\n" }}
{%- if tools is not none %}{%- for t in tools %}{{- t | tojson(indent=4) }}{{- "\\n\\n" }}{%- endfor %}{%- endif %}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
        {{- message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}{{- raise_exception("one call") }}{%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '{"name": "' + tool_call.name + '", ' }}{{- '"parameters": ' }}{{- tool_call.arguments | tojson }}{{- "}" }}
    {%- elif message.role == "tool" %}
        {%- if message.content is mapping or message.content is iterable %}{{- message.content | tojson }}
        {%- else %}{{- message.content }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}""",
    "qwen3": """{%- if tools %}{{- '<|im_start|>system\\n# Tools\\n' }}
{%- for tool in tools %}{{- "\\n" }}{{- tool | tojson }}{%- endfor %}{{- "<|im_end|>\\n" }}{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and not
        (message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}{%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == "assistant" %}
        {%- set content = message.content %}{%- set reasoning_content = '' %}
        {%- if '</think>' in content %}
            {%- set reasoning_content = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index and (loop.last or reasoning_content) %}
            {{- '<|im_start|>assistant\\n<think>\\n' + reasoning_content + '\\n</think>\\n\\n' + content }}
        {%- else %}{{- '<|im_start|>assistant\\n' + content }}{%- endif %}
        {%- for tool_call in message.tool_calls or [] %}
            {%- if tool_call.function %}{%- set tool_call = tool_call.function %}{%- endif %}
            {{- '<tool_call>\\n{"name": "' ~ tool_call.name ~ '", "arguments": ' }}
            {%- if tool_call.arguments is string %}{{- tool_call.arguments }}{%- else %}
            {{- tool_call.arguments | tojson }}{%- endif %}{{- '}\\n</tool_call>' }}
        {%- endfor %}{{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' }}{{- message.content }}{{- '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- else %}{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}""",
    "gemma2": """{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}
{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('turns') }}{% endif %}{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}
{% set role = message['role'] %}{% endif %}
{{ '<start_of_turn>' + role + '\\n' + message['content'] | trim + '<end_of_turn>\\n' }}
{% endfor %}{% if add_generation_prompt %}{{'<start_of_turn>model\\n'}}{% endif %}""",
    "phi3, olmo2": """{{ bos_token }}{% for message in messages %}
{% if message['role'] == 'system' and message['content'] %}
{{'<|system|>\\n' + message['content'] + '<|end|>\\n'}}{% elif message['role'] == 'user' %}
{{'<|user|>\\n' + message['content'] + '<|end|>\\n'}}{% elif message['role'] == 'assistant' %}
{{'<|assistant|>\\n' + message['content'] + '<|end|>\\n'}}{% if loop.last and not add_generation_prompt %}
{{ eos_token }}{% endif %}{% endif %}{% endfor %}
{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% else %}{{ eos_token }}{% endif %}""",
    "smollm3, what is learned is marked": """{%- set today = strftime_now("%d %B %Y") -%}
{%- if xml_tools or python_tools or tools -%}{%- set ns = namespace(text = "### Tools\\n\\n") -%}
{%- for tool in tools -%}{%- set ns.text = ns.text ~ (tool | string) ~ "\\n" -%}{%- endfor -%}{{- ns.text -}}
{%- endif -%}{%- for message in messages -%}
    {%- set content = message.content if message.content is string else "" -%}
    {%- if message.role == "user" -%}{{ "<|im_start|>user\\n" + content + "<|im_end|>\\n" }}
    {%- elif message.role == "assistant" -%}
        {% generation %}{%- set hidden = 1 -%}
        {%- if loop.index0 > 2 -%}{{ "<|im_start|>assistant\\n<think>\\n\\n</think>\\n" }}
        {{ content.lstrip("\\n") + "<|im_end|>\\n" }}
        {%- else -%}{{ "<|im_start|>assistant\\n" + content.lstrip("\\n") + "<|im_end|>\\n" }}{%- endif -%}
        {% endgeneration %}{{ hidden is defined }}
    {%- elif message.role == "tool" -%}{{ "<|im_start|>" + "user\\n" + content + "<|im_end|>\\n" }}{%- endif -%}
{%- endfor -%}{%- if add_generation_prompt -%}{{ "<|im_start|>assistant\\n<think>\\n\\n</think>\\n" }}{%- endif -%}""",
    "granite": """{%- if messages[0]['role'] == 'system' %}{%- set system = messages[0]['content'] %}
{%- set loop_messages = messages[1:] %}{%- else %}{%- set system = "Today's Date: " + strftime_now('%B %d, %Y') %}
{%- if tools and documents %}{%- set system = system + " both" %}{%- elif tools %}{%- set system = system + " tools" %}
{%- elif documents %}{%- set system = system + " documents" %}{%- endif %}
{%- set loop_messages = messages %}{%- endif %}
{{- '<|start_of_role|>system<|end_of_role|>' + system + '<|end_of_text|>\\n' }}
{%- if tools %}{{- '<|tools|>' }}{{- tools | tojson(indent=4) }}{{- '<|end_of_text|>\\n' }}{%- endif %}
{%- if documents is not none %}{%- for document in documents %}{{- document }}{%- endfor %}{%- endif %}
{%- for message in loop_messages %}{{- '<|start_of_role|>' + message['role'] + '<|end_of_role|>' + message['content'] }}
{%- if loop.last and add_generation_prompt %}{{- '<|start_of_role|>assistant' }}
{%- if controls %}{{- ' ' + controls | tojson() }}{%- endif %}{{- '<|end_of_role|>' }}{%- endif %}{%- endfor %}""",
    "gpt-oss, macros": """{%- macro typed(spec, required, deep=0) -%}
{%- if spec.type == "object" -%}{{- "{\\n" }}{%- for name, inner in spec.properties.items() -%}
{{- name }}{%- if name not in (required or []) -%}{{- "?" }}{%- endif -%}{{- ": " }}{{ typed(inner, [], deep + 1) }}
{%- if not loop.last -%}{{- ", " }}{%- endif -%}{%- endfor -%}{{- "}" }}{%- else -%}{{- spec.type }}{%- endif -%}
{%- endmacro -%}
{%- if tools -%}{%- for tool in tools -%}{%- set tool = tool.function -%}{{- "// " + tool.description + "\\n" }}
{{- "type " + tool.name + " = (_: " }}{{ typed(tool.parameters, tool.parameters.required) }}{{- ") => any;\\n" }}
{%- endfor -%}{%- endif -%}
{%- set last = namespace(call=none) -%}
{%- for message in messages -%}
{%- if message.role == "assistant" and message.tool_calls -%}{%- set last.call = message.tool_calls[0].function.name -%}
{{- "<|channel|>commentary to=functions." + last.call + " <|constrain|>json<|message|>" }}
{{- message.tool_calls[0].function.arguments|tojson(separators=(",", ":"), sort_keys=true, ensure_ascii=true) }}
{{- "<|call|>" }}
{%- elif message.role == "tool" -%}{%- if last.call is none %}{{- raise_exception("no call") }}{%- endif %}
{{- "<|start|>functions." + last.call }}{{- "<|message|>" + message.content|tojson + "<|end|>" }}
{%- else -%}{{- "<|start|>" + message.role + "<|message|>" + message.content + "<|end|>" }}
{%- if message.content == "d" %}{% break %}{% endif %}{%- endif -%}{%- endfor -%}
{%- if add_generation_prompt -%}<|start|>assistant{%- endif -%}""",
}


def theirs(talk: list[dict[str, Any]], template: str, **told: Any) -> str:
    """Return what transformers writes."""
    rendered: Any = render_jinja_template([talk], chat_template=template, **told)
    return str(rendered[0][0])


@pytest.mark.parametrize("name", TEMPLATES)
def test_conversations_are_written_as_transformers_writes_them(name: str) -> None:
    template = TEMPLATES[name]
    written = 0
    for talk in TALKS.values():
        for tools in (None, TOOLS):
            for prompt in (True, False):
                told: dict[str, Any] = {**NAMES, "add_generation_prompt": prompt}
                given = {"tools": tools} if tools else {}
                try:
                    wanted = theirs(talk, template, tools=tools, **told)
                except Exception as error:
                    with pytest.raises(TemplateError, match=re.escape(str(error))):
                        render(template, talk, **given, **told)
                    continue
                assert render(template, talk, **given, **told) == wanted
                written += 1
    assert written >= 4


def test_json_is_written_as_asked() -> None:
    talk = [{"role": "user", "content": {"b": "\u00e9", "a": [1, None]}}]
    for options in (
        "",
        "indent=2",
        "separators=(',', ':')",
        "sort_keys=true, ensure_ascii=true",
        "true, 1",
    ):
        template = f"{{{{ messages[0].content | tojson({options}) }}}}"
        wanted = theirs(talk, template)
        assert render(template, talk) == wanted
