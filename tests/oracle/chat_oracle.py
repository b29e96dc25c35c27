"""What transformers makes of a chat template: shared by make_chat_golden.py and compare_templates.py.

    pip install transformers jinja2

A result is {"text": …} or {"error": …, "type": …}. The day is held at 26 July 2024, as Sluice holds it.
"""
import copy
import datetime
import json

import jinja2
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast
from transformers.utils import chat_template_utils


class Frozen(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(2024, 7, 26)


chat_template_utils.datetime = Frozen


def tokenizer(tokens):
    named = {k: v for k, v in tokens.items() if k in ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")}
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"x": 0}, unk_token="x")), **named)


def with_text_arguments(chat):
    """The same conversation with the arguments of its tool calls as JSON text; None where there are none."""
    chat, found = copy.deepcopy(chat), False
    for message in chat["messages"]:
        for call in message.get("tool_calls") or []:
            call, found = call.get("function", call), True
            call["arguments"] = json.dumps(call["arguments"], ensure_ascii=False)
    return chat if found else None


def render(tok, source, chat):
    """One conversation: {"messages", "tools"?, "documents"?, "arguments"?, "add_generation_prompt"?}. A template that fails on arguments of
    tool calls that are objects is given them as text: the shape that it is written for."""
    result = render_as_given(tok, source, chat)
    text = with_text_arguments(chat) if "error" in result else None
    other = render_as_given(tok, source, text) if text else result
    return other if "text" in other else result


def render_as_given(tok, source, chat):
    try:
        text = tok.apply_chat_template(chat["messages"], tools=chat.get("tools"), documents=chat.get("documents"), chat_template=source,
                                       add_generation_prompt=chat.get("add_generation_prompt", False), tokenize=False, **chat.get("arguments", {}))
        text.encode()
        return {"text": text}
    except jinja2.exceptions.TemplateSyntaxError as e:
        return {"error": e.message, "type": "TemplateSyntaxError"}
    except Exception as e:  # whatever a template can raise
        return {"error": str(e), "type": type(e).__name__}


def generation_spans(source, tok, chat):
    """The character spans of {% generation %} blocks, where they lie in the output itself."""
    compiled = chat_template_utils._compile_jinja_template(source)
    messages = chat_template_utils._alias_reasoning_fields(chat_template_utils._normalize_chat_messages(chat["messages"]))
    text, spans = chat_template_utils._render_with_assistant_indices(
        compiled, messages, chat.get("tools"), chat.get("documents"), chat.get("add_generation_prompt", False), **{**tok.special_tokens_map, **chat.get("arguments", {})})
    return [[len(text[:a].encode()), len(text[:b].encode())] for a, b in spans]


def write(path, value):
    with open(path, "w") as f:
        json.dump(value, f, ensure_ascii=False, indent=0)
        f.write("\n")
