#!/usr/bin/env python3
"""Templates of conversations and what transformers renders with them, for tests/data/chat_template_test.cpp.

chat_templates.json holds
  conversations: lists of messages
  templates: by name, {template, rendered: [without and with a prompt for an answer, for each conversation; null: refused]}.
             The templates are written for these tests with the structure of those that models come with
  snippets:  small templates that use one thing each, with variables and what Jinja makes of them

    pip install transformers jinja2
    python make_chat_goldens.py
    python make_chat_goldens.py FOLDER FILE   with the templates FOLDER/*.jinja instead, to FILE:
                                              ONEFOLD_CHAT_GOLDENS=FILE data_tests --gtest_filter='ChatTemplateGolden*'

Made with transformers 5.23 and jinja2 3.1.
"""

import json
import pathlib
import sys

from transformers.utils.chat_template_utils import _compile_jinja_template

OUTPUT = pathlib.Path(__file__).parent / "chat_templates.json"
TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}

TEMPLATES = {
    "chatml": """{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}""",
    "chatml_system": """{%- for message in messages -%}
    {%- if loop.first and message.role != 'system' -%}
        {{- '<|im_start|>system\\nBe of use.<|im_end|>\\n' -}}
    {%- endif -%}
    {{- '<|im_start|>' ~ message.role ~ '\\n' ~ message.content | trim ~ '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- '<|im_start|>assistant\\n' -}}
{%- endif -%}
""",
    "marked": """{% for m in messages %}
<|{{ m.role }}|>
{% if m.role == 'assistant' %}
{% generation %}
{{ m.content }}<|end|>
{% endgeneration %}
{% else %}
{{ m.content }}<|end|>
{% endif %}
{% endfor %}
{% if add_generation_prompt %}
<|assistant|>
{% endif %}""",
    "llama2": """{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message = messages[0]['content'] %}{% elif false == true and not '<<SYS>>' in messages[0]['content'] %}{% set loop_messages = messages %}{% set system_message = 'Answer well.' %}{% else %}{% set loop_messages = messages %}{% set system_message = false %}{% endif %}{% for message in loop_messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Roles must alternate') }}{% endif %}{% if loop.index0 == 0 and system_message != false %}{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}{% else %}{% set content = message['content'] %}{% endif %}{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}{% elif message['role'] == 'system' %}{{ '<<SYS>>\\n' + content.strip() + '\\n<</SYS>>\\n\\n' }}{% elif message['role'] == 'assistant' %}{{ ' '  + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}""",
    "llama3": """{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}""",
    "llama31": """{{- bos_token }}
{%- if custom_tools is defined %}
    {%- set tools = custom_tools %}
{%- endif %}
{%- if not tools_in_user_message is defined %}
    {%- set tools_in_user_message = true %}
{%- endif %}
{%- if not date_string is defined %}
    {%- if strftime_now is defined and false %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}

{#- What a system message says comes first. #}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}

{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if builtin_tools is defined or tools is not none %}
    {{- "Environment: ipython\\n" }}
{%- endif %}
{{- "Knowledge until: December\\n" }}
{{- "Today: " + date_string + "\\n\\n" }}
{%- if tools is not none and not tools_in_user_message %}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{{- system_message }}
{{- "<|eot_id|>" }}

{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("One call at a time") }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
""",
    "mistral": """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}

{%- set ns = namespace() %}
{%- set ns.index = 0 %}
{%- for message in loop_messages %}
    {%- if not (message.role == "tool" or (message.tool_calls is defined and message.tool_calls is not none)) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("After the optional system message, roles must alternate user/assistant") }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}

{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and (message == user_messages[-1]) %}
            {{- "[AVAILABLE_TOOLS] [" }}
        {%- endif %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"]|trim + eos_token}}
    {%- else %}
        {{- raise_exception("Only user and assistant roles are supported, with an optional initial system message!") }}
    {%- endif %}
{%- endfor %}
""",
    "gemma": """{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}{{ '<start_of_turn>' + role + '\\n' + message['content'] | trim + '<end_of_turn>\\n' }}{% endfor %}{% if add_generation_prompt %}{{'<start_of_turn>model\\n'}}{% endif %}""",
    "gemma3": """{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- if messages[0]['content'] is string -%}
        {%- set first_user_prefix = messages[0]['content'] + '\\n\\n' -%}
    {%- else -%}
        {%- set first_user_prefix = messages[0]['content'][0]['text'] + '\\n\\n' -%}
    {%- endif -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'assistant') -%}
        {%- set role = "model" -%}
    {%- else -%}
        {%- set role = message['role'] -%}
    {%- endif -%}
    {{ '<start_of_turn>' + role + '\\n' + (first_user_prefix if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'text' -%}
                {{ item['text'] | trim }}
            {%- endif -%}
        {%- endfor -%}
    {%- else -%}
        {{ raise_exception("Invalid content type") }}
    {%- endif -%}
    {{ '<end_of_turn>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{'<start_of_turn>model\\n'}}
{%- endif -%}
""",
    "phi3": """{% for message in messages %}{% if message['role'] == 'system' and message['content'] %}{{'<|system|>\\n' + message['content'] + '<|end|>\\n'}}{% elif message['role'] == 'user' %}{{'<|user|>\\n' + message['content'] + '<|end|>\\n'}}{% elif message['role'] == 'assistant' %}{{'<|assistant|>\\n' + message['content'] + '<|end|>\\n'}}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% else %}{{ eos_token }}{% endif %}""",
    "qwen25": """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {{- "# Tools\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- else %}
    {%- if messages[0]['role'] == 'system' %}
        {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>system\\nYou are of help.<|im_end|>\\n' }}
    {%- endif %}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}
                {%- set tool_call = tool_call.function %}
            {%- endif %}
            {{- '\\n<tool_call>\\n{"name": "' }}
            {{- tool_call.name }}
            {{- '", "arguments": ' }}
            {{- tool_call.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' }}
        {{- message.content }}
        {{- '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
""",
    "qwen3": """{%- if messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- else %}
            {%- if '</think>' in content %}
                {%- set reasoning_content = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
                {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
            {%- endif %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index %}
            {%- if loop.last or (not loop.last and reasoning_content) %}
                {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning_content.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
            {%- else %}
                {{- '<|im_start|>' + message.role + '\\n' + content }}
            {%- endif %}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
""",
    "deepseek": """{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}{% set ns = namespace(is_first=false, is_tool=false, is_output_first=true, system_prompt='') %}{%- for message in messages %}{%- if message['role'] == 'system' %}{% set ns.system_prompt = message['content'] %}{%- endif %}{%- endfor %}{{bos_token}}{{ns.system_prompt}}{%- for message in messages %}{%- if message['role'] == 'user' %}{%- set ns.is_tool = false -%}{{'<\uff5cUser\uff5c>' + message['content']}}{%- endif %}{%- if message['role'] == 'assistant' and message['content'] is none %}{%- set ns.is_tool = false -%}{{'<\uff5cAssistant\uff5c>'}}{%- endif %}{%- if message['role'] == 'assistant' and message['content'] is not none %}{%- if ns.is_tool %}{{'<\uff5ctool\u2581outputs\u2581end\uff5c>' + message['content'] + '<\uff5cend\u2581of\u2581sentence\uff5c>'}}{%- set ns.is_tool = false -%}{%- else %}{% set content = message['content'] %}{% if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}{{'<\uff5cAssistant\uff5c>' + content + '<\uff5cend\u2581of\u2581sentence\uff5c>'}}{%- endif %}{%- endif %}{%- endfor -%}{% if add_generation_prompt and not ns.is_tool %}{{'<\uff5cAssistant\uff5c><think>\\n'}}{% endif %}""",
    "macros": """{%- macro header(role, after='\\n') -%}
<|{{ role | upper }}|>{{ after }}
{%- endmacro -%}
{%- set count = namespace(value=0) -%}
{%- for message in messages if message.content is defined -%}
{{ header(message.role) }}{{ message.content }}
{%- set count.value = count.value + 1 %}
{% endfor -%}
{{ count.value }} of {{ messages | length }}{{ header('assistant', after=':') if add_generation_prompt }}""",
}

WORDS = ["", "Hello", "  spaced  out  ", "two\nlines\n", "\ttab", "quotes \" and ' and \\ back", "{{ not a tag }} {% neither %}",
         "<|im_end|> spelt", "\u00e9\u00df \u4e2d\u6587 \u0440\u0443 \U0001f600\u200d\U0001f525", "a\u3000b\u00a0", "<think>\nhm\n</think>\n\nyes",
         "#hash", "1", "\r\ncrlf\r\n", "\u2028sep", "x" * 40]


def conversations():
    def say(*pairs):
        return [{"role": role, "content": content} for role, content in pairs]
    yield say(("user", "Hi"))
    yield say(("user", "Hi"), ("assistant", "Hello."))
    yield say(("system", "Be brief."), ("user", "Hi"), ("assistant", "Hello."), ("user", "Why?"), ("assistant", "Because."))
    yield say(("user", "a"), ("user", "b"))
    yield say(("assistant", "first"), ("user", "second"))
    yield say(("system", "alone"))
    yield say(("user", "q"), ("tool", "42"), ("assistant", "so"))
    for i, word in enumerate(WORDS):
        other = WORDS[(i + 5) % len(WORDS)]
        yield say(("user", word), ("assistant", other), ("user", other), ("assistant", word))
        yield say(("system", other), ("user", word))
    yield [m for i in range(9) for m in say(("user", f"question {i}"), ("assistant", f"answer {i}"))]


SNIPPETS = [
    # output and whitespace
    "a\n{% if true %}\nb\n{% endif %}\nc\n", "a {%- if true -%} b {%- endif -%} c", "  {% if true %}x{% endif %}  \n  {# c #}\ny",
    "{%+ if true +%}\n x{% endif %}", "x {{- 1 -}} y", "{# comment #}\nz\n\n", "{% raw %}{{ x }}{% endraw %}!", "a\r\nb\r\n", "\n\n  {{ 1 }}\n",
    "{% raw -%}  {{ a }} {%- endraw %} b", "  {%- set x = 1 %}\n{{ x }}", "a\n  {% set x = 1 %}  \nb", "\t{% if x is defined %}y{% endif %}z",
    # literals and printing
    "{{ 1 }} {{ 1.0 }} {{ 1e20 }} {{ 1.5e-7 }} {{ -3 }} {{ true }} {{ none }} {{ 'a\\tb\\x41\\u00e9' }} {{ [1, 'a', none, 2.5] }} {{ {'k': [true]} }}",
    "{{ ['it\\'s', 'a\"b', 'n\\n'] }} {{ (1, 2) | list }} {{ [] }} {{ {} }} {{ 'a' 'b' }} {{ 1_000 }} {{ '\\q' }}",
    # operators
    "{{ 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 2 ** 10 }} {{ 2 + 3 * 4 - 1 }} {{ (2 + 3) * 4 }} {{ 'ab' * 3 }} {{ 1 ~ 'x' ~ none }}",
    "{{ 7.5 // 2 }} {{ -7.5 % 2 }} {{ 1 + true }} {{ [1] + [2] }} {{ 'a' + 'b' }} {{ -2 ** 2 }} {{ 3 - -3 }}",
    "{{ 1 < 2 < 3 }} {{ 1 == 1.0 }} {{ 'a' < 'b' }} {{ 1 in [1, 2] }} {{ 'k' in {'k': 1} }} {{ 'bc' in 'abcd' }} {{ 3 not in [1] }} {{ not true }} {{ [1, 2] == [1, 2] }} {{ [1] < [1, 2] }}",
    "{{ true and 'x' }} {{ '' or 'y' }} {{ none and 1 }} {{ 0 or none }} {{ 'a' if false else 'b' }} {{ 'a' if false }}| {{ 1 if x is defined else 2 if true else 3 }}",
    # access
    "{{ d.a }} {{ d['a'] }} {{ d.missing }}| {{ d.list[1] }} {{ d.list[-1] }} {{ d.list[9] }}| {{ s[0] }} {{ s[-1] }} {{ s[1:3] }} {{ s[::-1] }} {{ d.list[:-1] }} {{ d.list[::2] }} {{ s[:100] }} {{ s[5:2] }} {{ s[-3:] }} {{ d.list[10:] }}",
    "{{ d.get('a') }} {{ d.get('z') }} {{ d.get('z', 'no') }} {{ d.items() | list | length }} {{ d.keys() | list }} {{ d.values() | list }}",
    "{{ missing }}| {{ missing is defined }} {{ missing is none }} {{ missing | default('d') }} {{ '' | default('e', true) }} {{ none | default('f') }} {{ missing | length }}",
    "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %} {% for c in s %}{{ c }}.{% endfor %} {% for k in d %}{{ k }}{% endfor %} {% for x in missing %}{{ x }}{% else %}none{% endfor %}",
    # loops
    "{% for x in [1, 2, 3] %}{{ loop.index }}/{{ loop.length }} {{ loop.first }} {{ loop.last }} {{ loop.revindex }} {{ loop.index0 }} {{ loop.revindex0 }} {{ loop.previtem }} {{ loop.nextitem }};{% endfor %}",
    "{% for x in range(5) if x % 2 == 0 %}{{ x }}{{ loop.index }},{% endfor %} {% for x in range(2, 10, 3) %}{{ x }} {% endfor %}{% for x in range(3, 0, -1) %}{{ x }}{% endfor %}",
    "{% set x = 1 %}{% for i in [1, 2] %}{{ x }}{% set x = 5 %}{{ x }}{% endfor %}{{ x }}", "{% set ns = namespace(n=0) %}{% for i in [1, 2] %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}",
    "{% for i in range(9) %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 4 %}{% break %}{% endif %}{{ i }}{% endfor %}", "{% for a, b in [[1, 2], [3, 4]] %}{{ a + b }} {% endfor %}{{ loop is defined }}",
    "{% for x in [1, 2, 3] %}{{ loop.cycle('a', 'b') }}{% endfor %}", "{% if d.list %}{% set y = 'in' %}{% endif %}{{ y }}",
    "{% set a, b = 1, 2 %}{{ a }}{{ b }} {% set t %}cap{{ a }}{% endset %}{{ t | upper }}", "{% filter upper %}abc{% endfilter %}",
    "{% macro m(a, b=2) %}[{{ a }}{{ b }}]{% endmacro %}{{ m(1) }}{{ m(1, 3) }}{{ m(b=4, a=5) }}{{ m() }}", "{% macro w() %}<{{ caller() }}>{% endmacro %}{% call w() %}in{% endcall %}",
    # filters
    "{{ '  a b ' | trim }}| {{ 'xxaxx' | trim('x') }} {{ 'Ab' | upper }} {{ 'Ab' | lower }} {{ 'aB cD' | capitalize }} {{ 'aB cD-eF' | title }} {{ 'a,b' | replace(',', ';') }} {{ s | length }} {{ s | reverse }}",
    "{{ [3, 1, 2] | sort }} {{ [3, 1] | sort(reverse=true) }} {{ ['b', 'A'] | sort }} {{ [1, 1, 2] | unique | list }} {{ [1, 2] | join('-') }} {{ [1, 2] | first }} {{ [1, 2] | last }} {{ [1, 2] | sum }} {{ [1, 5] | max }} {{ [1, 2] | reverse | list }}",
    "{{ users | map(attribute='n') | list }} {{ users | selectattr('n', 'equalto', 1) | list }} {{ users | rejectattr('a') | map(attribute='n') | join(',') }} {{ [0, 1, 2] | select | list }} {{ [1, 2, 3] | select('odd') | list }} {{ [1, 2] | reject('equalto', 1) | list }} {{ ['a'] | map('upper') | list }} {{ users | selectattr('a', 'defined') | list | length }}",
    "{{ d | tojson }} {{ 'a\"\\n\\u4e2d\\x01' | tojson }} {{ [1, 2.0, true, none] | tojson }} {{ {'b': 1, 'a': [1, {'c': 2}]} | tojson(indent=2) }} {{ [] | tojson(indent=2) }} {{ {} | tojson }} {{ 1.5 | tojson }}",
    "{{ '12' | int }} {{ 'x' | int(7) }} {{ 3.9 | int }} {{ '1.5' | float }} {{ -3 | abs }} {{ 2.5 | round }} {{ 5 | string + 'x' }} {{ (d | items | list)[1][0] }} {{ (d | dictsort | first)[0] }} {{ 'a' | list }} {{ 'a\nb' | indent }} {{ 'a\nb' | indent(2, true) }}",
    # tests
    "{{ 1 is number }} {{ 'a' is string }} {{ d is mapping }} {{ [1] is iterable }} {{ [1] is sequence }} {{ 'a' is sequence }} {{ true is boolean }} {{ 1 is integer }} {{ 1.0 is float }} {{ 2 is even }} {{ 3 is odd }} {{ 9 is divisibleby 3 }} {{ none is none }} {{ 1 is not none }} {{ true is true }} {{ 1 is true }} {{ 'a' is in ['a'] }} {{ 2 is eq 2 }} {{ 1 is lt(2) }} {{ 'AB' is upper }} {{ true is number }} {{ true is integer }}",
    # methods
    "{{ ' a '.strip() }}| {{ 'xxa'.lstrip('x') }} {{ 'a--'.rstrip('-') }} {{ 'a b  c'.split() }} {{ 'a,b,c'.split(',', 1) }} {{ 'a,b,c'.rsplit(',', 1) }} {{ 'l1\nl2'.splitlines() }} {{ 'abc'.startswith('ab') }} {{ 'abc'.endswith(('x', 'bc')) }} {{ 'aXb'.lower() }} {{ 'ab'.upper() }} {{ 'abcabc'.find('c') }} {{ 'abcabc'.rfind('c') }} {{ 'abcabc'.count('b') }} {{ '-'.join(['a', 'b']) }} {{ '12'.isdigit() }} {{ 'a'.isalpha() }} {{ ' '.isspace() }} {{ 'pre-x'.removeprefix('pre-') }} {{ 'aXa'.replace('a', 'b', 1) }} {{ \"it's ok\".title() }} {{ [1, 2].index(2) }} {{ [1, 1].count(1) }}",
    "{{ '\\u3000a\\u00a0'.strip() }}| {{ '\\u00c9A'.lower() }} {{ '\\u4e2d\\u6587x' | length }} {{ '\\u4e2d\\u6587x'[1] }}", "{{ dict(a=1, b='x') }} {{ namespace(a=1).a }}",
    "{{ '{} {{x}} {1}'.format('a', 2) if false else '{}<{}>{{}}'.format('a', 2) }} {{ '{1}{0}{k}'.format('a', true, k=none) }} {{ 'a' in missing }} {{ 'a' not in missing }} {{ none | selectattr('a') | list }} {{ none | map('upper') | list }} {{ 0 | select | list }} {{ '' | reject | list }}",
    # what is wrong
    "{{ '{}{}'.format(1) }}", "{{ '{'.format(1) }}", "{{ '}'.format(1) }}", "{{ none | list }}",
    "{{ missing.attribute }}", "{{ 1 / 0 }}", "{{ 1 + 'a' }}", "{% if %}", "{{ 'a }}", "{% for x in 5 %}{% endfor %}", "{{ raise_exception('no') }}", "{% endif %}", "{{ d.list.append(1) }}", "{% if true %}", "{{ x | nofilter }}", "{{ [1] < ['a'] }}", "{{ range(1000000) | length }}", "{{ missing + 'a' }}", "{{ missing['a'] }}",
    "{{ (1 }}", "{{ 1 2 }}", "{% unknown %}", "{{ }}", "{% set %}",
]
VARIABLES = {"d": {"a": 1, "b": "x", "list": [1, 2, 3]}, "s": "h\u00e9llo", "users": [{"n": 1, "a": True}, {"n": 2, "a": False}]}


def rendered(text, **variables):
    try:
        return {"text": _compile_jinja_template(text).render(**variables)}
    except Exception as error:
        return {"error": type(error).__name__}


def main():
    output, chosen = OUTPUT, TEMPLATES
    if sys.argv[1:]:
        chosen = {path.name: path.read_text() for path in sorted(pathlib.Path(sys.argv[1]).glob("*.jinja"))}
        output = pathlib.Path(sys.argv[2])
    all_messages = list(conversations())
    templates = {}
    for name, text in chosen.items():
        results = [[rendered(text, messages=messages, tools=None, documents=None, add_generation_prompt=prompt, **TOKENS).get("text")
                    for prompt in (False, True)] for messages in all_messages]
        templates[name] = {"template": text, "rendered": results}
    snippets = [{"template": text, **rendered(text, **VARIABLES)} for text in SNIPPETS]
    data = {"tokens": TOKENS, "variables": VARIABLES, "conversations": all_messages, "templates": templates, "snippets": snippets}
    output.write_text(json.dumps(data, ensure_ascii=False, indent=0) + "\n")


if __name__ == "__main__":
    main()
