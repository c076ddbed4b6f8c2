#!/usr/bin/env python3
"""Conversations with tools, and what transformers renders of them, for tests/data/chat_tools_test.cpp.

chat_tools.json holds
  lines:      JSON lines with a conversation each, as a data file has them: their order of keys, numbers and escapes matter
  templates:  by name, {template, rendered: [without and with a prompt for an answer, for each line; null: refused]}.
              The templates are written for these tests, in the style of those that models come with
  dumps:      [filter, JSON, what it renders]

    pip install transformers jinja2
    python make_chat_tools_goldens.py

Made with transformers 5.23 and jinja2 3.1.
"""

import json
import pathlib

from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast
from transformers.utils.chat_template_utils import _compile_jinja_template

OUTPUT = pathlib.Path(__file__).parent / "chat_tools.json"
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}

# The calls and results stand in tags; the tools are a list of JSON in the system message. Qwen 2.5 does so.
TAGS = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0]['role'] == 'system' %}
        {{- messages[0]['content'] + '\\n\\n' }}
    {%- endif %}
    {{- "You may call these:\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- elif messages[0]['role'] == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {%- if message.content %}
            {{- '\\n' + message.content }}
        {%- endif %}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}
                {%- set tool_call = tool_call.function %}
            {%- endif %}
            {{- '\\n<tool_call>\\n{"name": "' + tool_call.name + '", "arguments": ' }}
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
"""

# What was thought is shown after the last question alone, and arguments may be a text: as Qwen 3 has it.
THINKING = """{%- if tools %}
    {{- '<|im_start|>system\\n<tools>' }}
    {%- for tool in tools %}{{- "\\n" + (tool | tojson) }}{%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- endif %}
{%- set ns = namespace(asked=true, last=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.asked and message.role == "user" and message.content is string %}
        {%- set ns.asked = false %}
        {%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if message.role == "user" or message.role == "system" %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set thought = '' %}
        {%- if message.reasoning_content is string %}
            {%- set thought = message.reasoning_content %}
        {%- endif %}
        {{- '<|im_start|>assistant\\n' }}
        {%- if loop.index0 > ns.last and (loop.last or thought) %}
            {{- '<think>\\n' + thought.strip('\\n') + '\\n</think>\\n\\n' }}
        {%- endif %}
        {{- content }}
        {%- for call in message.tool_calls %}
            {%- if (loop.first and content) or (not loop.first) %}{{- '\\n' }}{%- endif %}
            {%- set call = call.function if call.function else call %}
            {{- '<tool_call>\\n{"name": "' ~ call.name ~ '", "arguments": ' }}
            {%- if call.arguments is string %}{{- call.arguments }}{%- else %}{{- call.arguments | tojson }}{%- endif %}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' + content + '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""

# One call in a message, as JSON or behind a tag as Python; tools with an indent in the first question. As Llama 3.1's.
HEADERS = """{{- bos_token }}
{%- if not tools is defined %}{%- set tools = none %}{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if tools is not none %}{{- "Environment: ipython\\n" }}{%- endif %}
{{- system_message + "<|eot_id|>" }}
{%- if tools is not none %}
    {%- if messages | length != 0 %}
        {%- set first = messages[0]['content'] | trim %}
        {%- set messages = messages[1:] %}
    {%- else %}
        {{- raise_exception("There is no question to put the tools into") }}
    {%- endif %}
    {{- '<|start_header_id|>user<|end_header_id|>\\n\\nAnswer with {"name": function name, "parameters": dictionary}.\\n\\n' }}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
    {{- first + "<|eot_id|>" }}
{%- endif %}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls | length == 1 %}
            {{- raise_exception("One call at a time") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
        {%- if tool_call.name == 'search' %}
            {{- "<|python_tag|>" + tool_call.name + ".call(" }}
            {%- for arg_name, arg_val in tool_call.arguments | items %}
                {{- arg_name + '="' + arg_val + '"' }}
                {%- if not loop.last %}{{- ", " }}{%- endif %}
            {%- endfor %}
            {{- ")" }}
        {%- else %}
            {{- '{"name": "' + tool_call.name + '", "parameters": ' }}
            {{- tool_call.arguments | tojson }}
            {{- "}" }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- else %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}
"""

# Tools stand before the last question, written key by key; calls have an id of nine characters. As Mistral's.
BRACKETS = """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- if not tools is defined %}{%- set tools = none %}{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{%- set ns = namespace(index=0) %}
{%- for message in loop_messages %}
    {%- if not (message.role == "tool" or message.role == "tool_results" or (message.tool_calls is defined and message.tool_calls is not none)) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("Roles must alternate") }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and (message == user_messages[-1]) %}
            {{- "[AVAILABLE_TOOLS] [" }}
            {%- for tool in tools %}
                {%- set tool = tool.function %}
                {{- '{"type": "function", "function": {' }}
                {%- for key, val in tool.items() if key != "return" %}
                    {%- if val is string %}
                        {{- '"' + key + '": "' + val + '"' }}
                    {%- else %}
                        {{- '"' + key + '": ' + val | tojson }}
                    {%- endif %}
                    {%- if not loop.last %}{{- ", " }}{%- endif %}
                {%- endfor %}
                {{- "}}" }}
                {%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" }}{%- endif %}
            {%- endfor %}
            {{- "[/AVAILABLE_TOOLS]" }}
        {%- endif %}
        {%- if loop.first and system_message is defined %}
            {{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message.tool_calls is defined and message.tool_calls is not none %}
        {{- "[TOOL_CALLS] [" }}
        {%- for tool_call in message.tool_calls %}
            {%- set out = tool_call.function | tojson %}
            {{- out[:-1] }}
            {%- if not tool_call.id is defined or tool_call.id | length != 9 %}
                {{- raise_exception("The id of a call has nine characters") }}
            {%- endif %}
            {{- ', "id": "' + tool_call.id + '"}' }}
            {%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" + eos_token }}{%- endif %}
        {%- endfor %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"] | trim + eos_token }}
    {%- elif message["role"] == "tool_results" or message["role"] == "tool" %}
        {%- if message.content is defined and message.content.content is defined %}
            {%- set content = message.content.content %}
        {%- else %}
            {%- set content = message.content %}
        {%- endif %}
        {{- '[TOOL_RESULTS] {"content": ' + content | string + ", " }}
        {{- '"call_id": "' + message.tool_call_id + '"}[/TOOL_RESULTS]' }}
    {%- else %}
        {{- raise_exception("Only user, assistant and tool are known") }}
    {%- endif %}
{%- endfor %}
"""

# Tools as signatures of Python, by a macro that goes through their schema. Hermes does something like it.
SIGNATURES = """{%- macro type_of(spec) %}
    {%- set plain = {"string": "str", "number": "float", "integer": "int", "boolean": "bool"} %}
    {%- if plain[spec.type] is defined %}
        {{- plain[spec.type] }}
    {%- elif spec.type == "array" %}
        {{- "list[" + type_of(spec['items']) + "]" }}
    {%- elif spec.type == "object" %}
        {%- if spec.additionalProperties is defined %}
            {{- "dict[str, " + type_of(spec.additionalProperties) + "]" }}
        {%- else %}
            {{- "dict" }}
        {%- endif %}
    {%- elif spec.type is iterable %}
        {{- "Union[" }}
        {%- for t in spec.type %}
            {{- type_of({"type": t}) }}
            {%- if not loop.last %}{{- "," }}{%- endif %}
        {%- endfor %}
        {{- "]" }}
    {%- else %}
        {{- "Any" }}
    {%- endif %}
{%- endmacro %}
{{- bos_token }}
{{- "<|im_start|>system\\n<tools>" }}
{%- for tool in tools %}
    {%- set tool = tool.function if tool.function is defined else tool %}
    {{- "\\n" + tool.name + "(" }}
    {%- for name, spec in tool.parameters.properties | items %}
        {{- name + ": " + type_of(spec) }}
        {%- if spec.items %} (items is a method){% endif %}
        {%- if not loop.last %}{{- ", " }}{%- endif %}
    {%- endfor %}
    {{- ")" }}
    {%- if tool.return is defined %}{{- " -> " + type_of(tool.return) }}{%- endif %}
    {{- " # " + (tool.description | default("", true)) + " " + tool.parameters.required | default([]) | tojson }}
{%- endfor %}
{{- "\\n</tools><|im_end|>\\n" }}
{%- for message in messages %}
    {%- if message.role == "assistant" and message.tool_calls is defined %}
        {{- "<|im_start|>assistant" }}
        {%- for call in message.tool_calls %}
            {{- "\\n<tool_call>\\n" }}
            {%- if call.function is defined %}{%- set call = call.function %}{%- endif %}
            {{- {"name": call.name, "arguments": call.arguments} | tojson }}
            {{- "\\n</tool_call>" }}
        {%- endfor %}
        {{- "<|im_end|>\\n" }}
    {%- elif message.role == "tool" %}
        {{- "<|im_start|>tool\\n<tool_response>" ~ (message.name ~ ": " if message.name else "") ~ message.content ~ "</tool_response><|im_end|>\\n" }}
    {%- else %}
        {{- "<|im_start|>" + message.role + "\\n" + message.content + "<|im_end|>\\n" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- "<|im_start|>assistant\\n" }}{%- endif %}
"""

# Everything as JSON, without spaces and with sorted keys; answers are marked.
COMPACT = """{%- if tools is not none %}<|tools|>{{ tools | tojson(separators=(',', ':')) }}<|end|>{% endif %}
{%- if documents %}<|documents|>{{ documents | tojson }}<|end|>{% endif %}
{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {{- '<|assistant|>' }}
        {%- generation %}
            {{- message.content or '' }}
            {%- for call in message.tool_calls or [] %}
                {{- '<|call|>' + call.function.name + ' ' + call.function.arguments | tojson(sort_keys=true, ensure_ascii=true) }}
            {%- endfor %}
            {{- '<|end|>' }}
        {%- endgeneration %}
    {%- else %}
        {{- '<|' + message.role + '|>' + (message.content if message.content is string else message.content | tojson(indent=1)) + '<|end|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|assistant|>{% endif %}"""

TEMPLATES = {"tags": TAGS, "thinking": THINKING, "headers": HEADERS, "brackets": BRACKETS, "signatures": SIGNATURES, "compact": COMPACT}

WEATHER = r"""{"type": "function", "function": {"name": "get_weather", "description": "The weather of a \"city\", caf\u00e9s too", "parameters": {"type": "object", "properties": {"city": {"type": "string", "description": "Zürich, 北京"}, "unit": {"type": "string", "enum": ["C", "F"]}, "days": {"type": "integer", "default": 3}}, "required": ["city"]}}}"""
SEARCH = r"""{"function": {"description": "Looks things up", "name": "search", "parameters": {"properties": {"query": {"type": "string"}, "sites": {"items": {"type": "string"}, "type": "array"}, "filter": {"type": ["string", "null"]}, "extra": {"type": "object", "additionalProperties": {"type": "number"}}, "any": {}}, "type": "object"}, "return": {"type": "object"}}, "type": "function"}"""
NUMBERS = r"""{"type": "function", "function": {"name": "numbers", "parameters": {"type": "object", "properties": {"x": {"type": "number", "minimum": -0.0, "maximum": 1e16, "multipleOf": 1e-05, "default": 1.50, "examples": [1E5, 123456789012345678901234567890, -98765432109876543210, 18446744073709551615, 9223372036854775808, 0.1, 1e22, 123456789.123456789, 5e-324, 2.0, -0, 1e15, 100000000000000000000.0]}}, "required": []}}}"""

LINES = [
    # one call, its result, the answer
    r"""{"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Weather?"}, {"role": "assistant", "content": null, "tool_calls": [{"type": "function", "id": "abcdefghi", "function": {"name": "get_weather", "arguments": {"city": "Zürich", "unit": "C"}}}]}, {"role": "tool", "tool_call_id": "abcdefghi", "name": "get_weather", "content": "{\"temp\": 21}"}, {"role": "assistant", "content": "21 degrees."}], "tools": [%WEATHER%]}""",
    # no content at all, two calls at a time, several tools, then another question
    r"""{"tools": [%WEATHER%, %SEARCH%], "messages": [{"role": "user", "content": "Compare <b> & 'c'"}, {"role": "assistant", "tool_calls": [{"id": "111111111", "type": "function", "function": {"name": "get_weather", "arguments": {"city": "北京", "days": 2}}}, {"id": "222222222", "type": "function", "function": {"arguments": {"query": "a \"b\" \\ \u2028 \u007f \u0001 😀"}, "name": "search"}}]}, {"role": "tool", "tool_call_id": "111111111", "content": "sun"}, {"role": "tool", "tool_call_id": "222222222", "content": "rain\n\"x\""}, {"role": "assistant", "content": "They differ."}, {"role": "user", "content": "Thanks"}, {"role": "assistant", "content": "Any time."}]}""",
    # arguments as a text: JSON, and not
    r"""{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "", "tool_calls": [{"id": "333333333", "type": "function", "function": {"name": "get_weather", "arguments": "{\"city\": \"Oslo\", \"n\": 1.0}"}}]}, {"role": "tool", "tool_call_id": "333333333", "content": "cold"}, {"role": "assistant", "content": "Cold."}], "tools": [%WEATHER%]}""",
    r"""{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "Let me see.", "tool_calls": [{"id": "444444444", "type": "function", "function": {"name": "search", "arguments": "not { JSON"}}]}, {"role": "tool", "tool_call_id": "444444444", "content": "?"}, {"role": "assistant", "content": "No."}], "tools": [%SEARCH%]}""",
    # numbers, repeated keys, keys that are no words, empty ones, methods of dictionaries as keys
    r"""{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": null, "tool_calls": [{"id": "555555555", "type": "function", "function": {"name": "numbers", "arguments": {"x": 1e16, "y": [1.0, -0.0, 1e-7, 123456789012345678901234567890], "x": 0.30000000000000004, "": {"items": [], "keys": {}, "get": null}, "a b": [true, false, null], "é": "\u00e9\ud83d\ude00"}}}]}, {"role": "tool", "tool_call_id": "555555555", "content": "ok"}], "tools": [%NUMBERS%]}""",
    # a tool without the wrapping, and one without parameters
    r"""{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}], "tools": [{"name": "bare", "description": null, "parameters": {"properties": {}}}, {"type": "function", "function": {"name": "none", "parameters": {"type": "object", "properties": {}}}}]}""",
    # no tools, an empty list of them, and null
    r"""{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}""",
    r"""{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}], "tools": []}""",
    r"""{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}], "tools": null}""",
    # calls without tools in the record, results that are objects
    r"""{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "", "tool_calls": [{"id": "666666666", "type": "function", "function": {"name": "f", "arguments": {}}}]}, {"role": "tool", "tool_call_id": "666666666", "name": "f", "content": {"temp": 21.0, "unit": "C", "list": [1, {"b": 2, "a": []}]}}, {"role": "assistant", "content": "It is."}]}""",
    r"""{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "", "tool_calls": [{"id": "777777777", "type": "function", "function": {"name": "f", "arguments": {"deep": [[[[[[{"a": {"b": {"c": [{}]}}}]]]]]]}}}]}, {"role": "tool", "tool_call_id": "777777777", "content": ""}, {"role": "assistant", "content": "Done."}], "tools": [%WEATHER%]}""",
    # thoughts beside the content, several turns with calls in each
    r"""{"messages": [{"role": "user", "content": "one"}, {"role": "assistant", "reasoning_content": "hm\n", "content": "", "tool_calls": [{"id": "888888888", "type": "function", "function": {"name": "get_weather", "arguments": {"city": "A"}}}]}, {"role": "tool", "tool_call_id": "888888888", "content": "x"}, {"role": "assistant", "content": "First.", "reasoning_content": "so"}, {"role": "user", "content": "two"}, {"role": "assistant", "content": "", "tool_calls": [{"id": "999999999", "type": "function", "function": {"name": "get_weather", "arguments": {"city": "A"}}}]}, {"role": "tool", "tool_call_id": "999999999", "content": "y"}, {"role": "assistant", "content": "Second.", "reasoning_content": "ah"}], "tools": [%WEATHER%]}""",
    # documents, which most templates pass over; another key that none sees
    r"""{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}], "documents": [{"title": "T", "text": "Ü \u0000 z"}], "source": "x", "id": 12345678901234567890123}""",
]

DUMPS = [
    ("tojson", r"""[1, 2.0, "é\u007f/<>&'", null, true]"""), ("tojson(indent=2)", r"""{"a": [], "b": {}, "c": [1, {"d": [2]}]}"""),
    ("tojson(indent=0)", r"""{"a": [1]}"""), ("tojson(false, 1)", r"""{"a": [1]}"""), ("tojson(indent=-1)", r"""{"a": [1]}"""),
    ("tojson(ensure_ascii=true)", r"""{"é": "\u007f\ud83d\ude00\u2028ÿ\n"}"""), ("tojson(ensure_ascii=false)", r"""{"é": "\u007f"}"""),
    ("tojson(separators=(',', ':'))", r"""{"a": [1, 2], "b": "x"}"""), ("tojson(indent=1, separators=('; ', '='))", r"""{"a": [1, 2], "b": "x"}"""),
    ("tojson(sort_keys=true)", r"""{"b": {"z": 1, "a": 2}, "a": 3, "B": 4, "é": 5}"""), ("tojson(indent=none, separators=none)", r"""[1, 2]"""),
    ("string", r"""{"a": [1.0, 123456789012345678901234567890, null], "b": "it's"}"""), ("length", r"""[[1], 2]"""),
    ("list", r"""{"b": 1, "a": 2, "b": 3}"""), ("items | map('join', '=') | join", r"""{"b": 1, "a": 2, "b": 3}"""), ("map('tojson') | join(';')", r"""[{"a": 1.50}, "x", 18446744073709551615]"""),
]


def rendered(tokenizer, record, prompt):
    try:
        return tokenizer.apply_chat_template(record["messages"], tools=record.get("tools"), documents=record.get("documents"),
                                             add_generation_prompt=prompt, tokenize=False)
    except Exception:
        return None


def tokenizer_with(template):
    plain = Tokenizer(models.WordLevel({token: i for i, token in enumerate(TOKENS.values())}))
    return PreTrainedTokenizerFast(tokenizer_object=plain, chat_template=template, **TOKENS)


def main():
    lines = [line.replace("%WEATHER%", WEATHER).replace("%SEARCH%", SEARCH).replace("%NUMBERS%", NUMBERS) for line in LINES]
    records = [json.loads(line) for line in lines]
    templates = {name: {"template": text, "rendered": [[rendered(tokenizer_with(text), record, prompt) for prompt in (False, True)] for record in records]}
                 for name, text in TEMPLATES.items()}
    dumps = [[name, value, _compile_jinja_template("{{ x | " + name + " }}").render(x=json.loads(value))] for name, value in DUMPS]
    data = {"tokens": TOKENS, "lines": lines, "templates": templates, "dumps": dumps}
    OUTPUT.write_text(json.dumps(data, ensure_ascii=False, indent=0) + "\n")
    for name, golden in templates.items():
        print(name, sum(text is not None for pair in golden["rendered"] for text in pair), "of", 2 * len(lines))


if __name__ == "__main__":
    main()
