"""Golden data for chat templates: what transformers makes of each template of tests/golden/chat/ and where the answers lie.

    pip install transformers jinja2
    python3 tests/oracle/make_chat_golden.py          # writes tests/golden/chat/*.json

The templates there are written for this project: construct_* try one part of Jinja each, malformed_* are refused, family_* have the shape
of a model family's. A new template is a new *.jinja file; tokens.json gives the texts of its tokens where they are not <s> and </s>.

"learned" is [message, begin, end] in bytes, found without Sluice: {% generation %} blocks by transformers' own tracker, else by looking for
an answer's text, which must stand in the rendered text once, and the first stop token after it and before the next message's text.
"""
import glob
import json
import os

import chat_conversations
import chat_oracle

FOLDER = os.path.join(os.path.dirname(__file__), "..", "golden", "chat")


def settings_of(name, tokens):
    found = max((key for key in tokens if name.startswith(key)), key=len, default="default")
    return {**tokens["default"], **tokens[found]}


def learned(text, chat, stops):
    """Nothing where the texts alone do not tell."""
    found, contents = [], []
    for message in chat["messages"]:
        content = message.get("content")
        if not isinstance(content, str) or not content.strip() or set(message) & {"tool_calls", "reasoning_content", "thinking", "reasoning"}:
            return None
        content = content.strip()
        if "<" in content or text.count(content) != 1:
            return None
        contents.append((text.index(content), content, message["role"]))
    for i, (begin, content, role) in enumerate(contents):
        if role != "assistant":
            continue
        after = begin + len(content)
        limit = min((b for b, _, _ in contents if b > begin), default=len(text))
        stop = min(((text.find(s, after, limit), -len(s)) for s in stops if text.find(s, after, limit) >= 0), default=None)
        raw = chat["messages"][i]["content"]
        if stop is None or content != raw and raw in text:
            return None
        found.append([i, len(text[:begin].encode()), len(text[:stop[0] - stop[1]].encode())])
    return found


def blocks(source, tok, chat):
    assistants = [i for i, m in enumerate(chat["messages"]) if m["role"] == "assistant"]
    spans = chat_oracle.generation_spans(source, tok, chat)
    return [[i, *span] for i, span in zip(assistants, spans) if span[0] < span[1]] if len(spans) == len(assistants) else None


def main():
    chats = chat_conversations.all_chats()
    chat_oracle.write(os.path.join(FOLDER, "conversations.json"), chats)
    tokens = json.load(open(os.path.join(FOLDER, "tokens.json")))
    for path in sorted(glob.glob(os.path.join(FOLDER, "*.jinja"))):
        name = os.path.basename(path).removesuffix(".jinja")
        source = open(path, newline="").read()
        own = settings_of(name, tokens)
        tok, results = chat_oracle.tokenizer(own["tokens"]), []
        for i, chat in enumerate(chats):
            # Constructs do not depend on the prompt, and a malformed template fails the same way for all.
            if (name.startswith("construct_") and chat["add_generation_prompt"]) or (name.startswith("malformed_") and i > 0):
                results.append(None)
                continue
            result = chat_oracle.render(tok, source, chat)
            if "text" in result:
                generation = "{% generation" in source or "{%- generation" in source
                ranges = blocks(source, tok, chat) if generation else learned(result["text"], chat, own["stops"]) if name.startswith("family_") else None
                if ranges is not None:
                    result["learned"] = ranges
            results.append(result)
        chat_oracle.write(os.path.join(FOLDER, name + ".json"), {**own, "results": results})
        print(name, sum(1 for r in results if r and "text" in r), sum(1 for r in results if r and "error" in r), sum(1 for r in results if r and "learned" in r))


if __name__ == "__main__":
    main()
