"""Golden data for chat templates: what Jinja, set up as Hugging Face transformers sets it up, renders, and where the answers lie.

    pip install jinja2 gguf
    python3 tests/oracle/make_chat_golden.py [path of SmolLM2-135M-Instruct.Q4_1.gguf]     # writes tests/golden/chat_templates.json

The templates are written for this project in the shapes that the model families use; the path, when given, checks that the one
called smollm2 is the one inside that file. A supervised range is found by looking for each answer's own text in the rendered
conversation (contents are all different), plus the end-of-turn token after it.
"""
import json
import os
import sys

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

OUT = os.path.join(os.path.dirname(__file__), "..", "golden", "chat_templates.json")
CHATML_TURN = "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
CHATML_PROMPT = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
ALTERNATE = ("{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
             "{{ raise_exception('user and assistant must take turns') }}{% endif %}")

TEMPLATES = {
    "chatml": ("", "<|im_end|>", "{% for message in messages %}" + CHATML_TURN + "{% endfor %}" + CHATML_PROMPT),
    "chatml_spread_out": ("", "<|im_end|>", """{#- turns -#}
{%- for message in messages %}
    {{- "<|im_start|>" ~ message.role + "\\n" + message.content }}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>' }}{{ 'assistant' + "\\n" }}
{%- endif %}
"""),
    "smollm2": ("<|im_start|>", "<|im_end|>",
                "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\n"
                "You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}{% endif %}" + CHATML_TURN + "{% endfor %}"
                + CHATML_PROMPT),
    "chatml_with_tools": ("", "<|im_end|>", """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0]['role'] == 'system' %}{{- messages[0]['content'] }}{%- else %}{{- 'You know it\\'s "all".' }}{%- endif %}
    {{- "\\n\\nThese functions exist:" }}
    {%- for tool in tools %}
        {{- "\\n" }}{{- tool | tojson }}
    {%- endfor %}
    {{- "<|im_end|>\\n" }}
{%- else %}
    {%- if messages[0]['role'] == 'system' %}
        {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>system\\nYou know it\\'s "all".<|im_end|>\\n' }}
    {%- endif %}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {%- for tool_call in message.tool_calls %}{{- '\\n<call>' }}{{- tool_call.name }}{%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<result>\\n' }}{{- message.content }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""),
    "llama3": ("<|begin_of_text|>", "<|eot_id|>",
               "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start_header_id|>' + message['role'] + "
               "'<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}"
               "{% endif %}{{ content }}{% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"),
    "llama31": ("<|begin_of_text|>", "<|eot_id|>", """{{- bos_token }}
{%- if custom_tools is defined %}
    {%- set tools = custom_tools %}
{%- endif %}
{%- if not tools_in_user_message is defined %}
    {%- set tools_in_user_message = true %}
{%- endif %}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}{%- set date_string = strftime_now("%d %b %Y") %}{%- else %}{%- set date_string = "26 Jul 2024" %}{%- endif %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}

{#- The system text stands beside the dates. #}
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
{{- "Cutting Knowledge Date: December 2023\\n" }}
{{- "Today Date: " + date_string + "\\n\\n" }}
{%- if tools is not none and not tools_in_user_message %}
    {%- for t in tools %}{{- t | tojson(indent=4) }}{%- endfor %}
{%- endif %}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- if tools_in_user_message and not tools is none %}
    {{- '<|start_header_id|>user<|end_header_id|>\\n\\nSome functions.<|eot_id|>' -}}
{%- endif %}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}{{- message.tool_calls[0].function | tojson }}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" + message.content + "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""),
    "gemma2": ("<bos>", "<end_of_turn>",
               "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}{% for message in messages %}"
               + ALTERNATE + "{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}"
               "{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}"
               "{% if add_generation_prompt %}{{'<start_of_turn>model\n'}}{% endif %}"),
    "gemma3": ("<bos>", "<end_of_turn>", """{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- if messages[0]['content'] is string -%}
        {%- set first_user_prefix = messages[0]['content'] + '\n\n' -%}
    {%- else -%}
        {%- set first_user_prefix = messages[0]['content'][0]['text'] + '\n\n' -%}
    {%- endif -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    """ + ALTERNATE + """
    {%- if (message['role'] == 'assistant') -%}
        {%- set role = "model" -%}
    {%- else -%}
        {%- set role = message['role'] -%}
    {%- endif -%}
    {{ '<start_of_turn>' + role + '\n' + (first_user_prefix if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}{{ item['text'] | trim }}{%- endfor -%}
    {%- else -%}
        {{ raise_exception("what is this") }}
    {%- endif -%}
    {{ '<end_of_turn>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{'<start_of_turn>model\n'}}
{%- endif -%}
"""),
}
for name, answer in {"mistral": "message['content'] + eos_token", "mistral_space_after": "message['content'] + eos_token + ' '",
                     "mistral_space_before": "' ' + message['content'] + eos_token"}.items():
    TEMPLATES[name] = ("<s>", "</s>", "{{ bos_token }}{% for message in messages %}" + ALTERNATE + "{% if message['role'] == 'user' %}"
                       "{{ '[INST] ' + message['content'] + ' [/INST]' }}{% elif message['role'] == 'assistant' %}{{ " + answer + "}}"
                       "{% else %}{{ raise_exception('only user and assistant') }}{% endif %}{% endfor %}")

REFUSED = {
    "a namespace": "{% set ns = namespace(last=0) %}{% for message in messages %}{% set ns.last = loop.index0 %}{% endfor %}" + CHATML_PROMPT,
    "a macro": "{% macro turn(m) %}{{ m.content }}{% endmacro %}{% for message in messages %}{{ turn(message) }}{% endfor %}",
    "reasoning blocks": "{% for message in messages %}{{ message.content.split('<think>')[0] }}{% endfor %}",
    "the program": "{% for message in messages %}{{ message['content'] }}{% endfor %}",
    "a trimmed turn": "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] | trim + '<|im_end|>' + '\n'}}{% endfor %}",
}


def chats():
    s, u, a = (lambda role: lambda text: {"role": role, "content": text})("system"), None, None
    u, a = (lambda t: {"role": "user", "content": t}), (lambda t: {"role": "assistant", "content": t})
    return [
        [u("What is 2 + 2?"), a("It is four.")],
        [s("Answer in rhyme."), u("What is a river?"), a("A silver liver-giver.")],
        [u("one\n"), a("  eins <|im_end|> \n"), u("zwei?"), a("two 👩‍👩‍👧"), u("drei"), a("three\u00a0")],
        [s(" \n spaced system \t"), u(" a "), a("\n\nb\n"), u("c")],
        [u("only a question, in ünïcödé: 你好")],
        [s("only a system")],
        [a("the assistant begins")],
        [u("two"), u("users"), a("in a row")],
        [u("late"), a("then"), s("a system"), u("turn"), a("and an answer")],
        [u(""), a("")],
        [s(""), u("empty system"), a("fine")],
        [u("quotes ' \" \\ and {{ braces }} {% tags %}"), a("<|start_header_id|> [/INST] '+'")],
    ]


def environment():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)
    env.globals["raise_exception"] = raise_exception
    return env


def supervised(text, messages, trims, end):
    ranges, at = [], 0
    for m in messages:
        content = m["content"].strip() if trims else m["content"]
        if m["role"] != "assistant":
            continue
        at = text.index(content + end, at) if content else text.index(end, text.rindex("assistant") if "assistant" in text else at)
        stop = at + len(content) + len(end)
        ranges.append([len(text[:at].encode()), len(text[:stop].encode())])
        at = stop
    return ranges


def main():
    if len(sys.argv) > 1:
        import gguf
        assert gguf.GGUFReader(sys.argv[1]).fields["tokenizer.chat_template"].contents() == TEMPLATES["smollm2"][2]
    out = {"templates": [], "refused": [{"why": why, "source": source} for why, source in REFUSED.items()]}
    for name, (bos, end, source) in TEMPLATES.items():
        template = environment().from_string(source)
        rendered = []
        for messages in chats():
            for prompt in (False, True):
                one = {"messages": messages, "add_generation_prompt": prompt}
                try:
                    one["text"] = template.render(messages=messages, add_generation_prompt=prompt, bos_token=bos, eos_token=end)
                    if all(m["content"] for m in messages):
                        one["supervised"] = supervised(one["text"], messages, "llama" in name or "gemma" in name, end)
                except jinja2.exceptions.TemplateError as e:
                    one["error"] = str(e)
                rendered.append(one)
        out["templates"].append({"name": name, "bos": bos, "eos": end, "source": source, "chats": rendered})
    with open(OUT, "w") as f:
        json.dump(out, f, ensure_ascii=False, indent=0)
        f.write("\n")


if __name__ == "__main__":
    main()
