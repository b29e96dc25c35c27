"""Golden masks: which characters of a conversation, and which first and last token of every answer, are to be learned.

    pip install transformers jinja2
    python3 tests/oracle/make_mask_golden.py        # reads the templates of tests/golden/chat/, writes tests/golden/chat_masks.json

1,000 random conversations over all templates. The oracle knows nothing of templates: it renders a conversation a second time with every answer
replaced by a mark of its own and sees where the marks come out; what stands between them is the template's. The real text has to be these pieces with
the answers (or the answers without white space around them) between, else the conversation is left out and counted. A range goes from the answer's first
byte to its last, with the end-of-turn text that follows it, after white space at most. Templates with {% generation %} are not among these.

Tokens are those of a toy byte-level BPE with the merges "a b" and then "Ġ a", in which whole end-of-turn texts and other marks <|…|> are one token.
"""
import glob
import json
import os
import random
import re

from chat_oracle import render, tokenizer

HERE = os.path.dirname(os.path.abspath(__file__))
GOLDEN = os.path.join(HERE, "..", "golden")
CONVERSATIONS = 1000
WORDS = ["a", "ab", "b", "abab", "cab", "Zürich", "你好", "🙂", "x.", "q?", "42", "<b>", "{{ a }}", "a\nb", "b\n\na", "\ta", "'", "\\n"]


def templates():
    """(name, source, tokens, stops) of the golden templates of the model families."""
    for path in sorted(glob.glob(os.path.join(GOLDEN, "chat", "family_*.jinja"))):
        about = json.load(open(path[:-6] + ".json"))
        source = open(path, newline="").read()
        if not re.search(r"{%-?\s*generation", source):
            yield os.path.basename(path)[:-6], source, about["tokens"], about["stops"]


def words(rng, most):
    return " ".join(rng.choice(WORDS) for _ in range(rng.randint(1, most)))


def answer(rng):
    text = words(rng, 6)
    return rng.choice(["", "", "", " ", "\n", "  "]) + text + rng.choice(["", "", "", " ", "\n\n"])


def conversation(rng):
    messages = [{"role": "system", "content": words(rng, 5)}] if rng.random() < 0.3 else []
    for _ in range(rng.randint(1, 5)):
        messages += [{"role": "user", "content": words(rng, 8)}, {"role": "assistant", "content": answer(rng)}]
    return messages + ([{"role": "user", "content": words(rng, 3)}] if rng.random() < 0.2 else [])


def ranges(tok, source, stops, messages):
    """The text and one [begin, end) in characters for each answer; None where the template refuses or does something else."""
    real = render(tok, source, {"messages": messages}).get("text")
    marks = {i: f"QZ{i}X7K" for i, m in enumerate(messages) if m["role"] == "assistant"}
    marked = render(tok, source, {"messages": [{**m, "content": marks.get(i, m["content"])} for i, m in enumerate(messages)]}).get("text")
    if real is None or marked is None or any(marked.count(m) != 1 for m in marks.values()):
        return None
    pieces = re.split("|".join(marks.values()), marked)
    at, found = 0, []
    for i, before, after in zip(marks, pieces, pieces[1:]):
        if not real.startswith(before, at):
            return None
        begin = at + len(before)
        content = messages[i]["content"]
        shown = next((t for t in (content, content.strip(), content.lstrip(), content.rstrip()) if real.startswith(t + after[:8], begin)), None)
        if shown is None:
            return None
        at = end = begin + len(shown)
        blank = len(after) - len(after.lstrip())
        stop = next((s for s in stops if s and after[blank:].startswith(s)), None)
        if stop is None and (mark := re.match(r"<\|end\|>", after[blank:])):  # gpt-oss ends its earlier turns so, and stops at another mark
            stop = mark.group()
        found.append([begin, end + blank + len(stop) if stop else end])
    return (real, found) if real[at:] == pieces[-1] else None


def tokens(text, stops):
    """Character ranges of the toy tokenizer's tokens; bytes of a character share its range."""
    result = []
    marks = "|".join(re.escape(s) for s in stops if s)
    for part in re.finditer(f"({marks}|<\\|[a-z_]+\\|>)|((?!{marks}|<\\|[a-z_]+\\|>).)", text, re.S):
        result.append([part.start(), part.end()])
    merged = []
    for t in result:  # "a b"
        if merged and text[merged[-1][0]:merged[-1][1]] == "a" and text[t[0]:t[1]] == "b":
            merged[-1][1] = t[1]
        else:
            merged.append(t)
    last = []
    for t in merged:  # "Ġ a"
        if last and text[last[-1][0]:last[-1][1]] == " " and text[t[0]:t[1]] == "a":
            last[-1][1] = t[1]
        else:
            last.append(list(t))
    return last


def main():
    rng, all_templates = random.Random(12), list(templates())
    out, left_out, done = {n: {"name": n, "tokens": t, "stops": e, "marks": sorted({s for s in e if s}), "rows": []} for n, s, t, e in all_templates}, 0, 0
    toks = {n: tokenizer(t) for n, _, t, _ in all_templates}
    turn, in_vain = 0, {}
    while done < CONVERSATIONS:
        name, source, _, stops = all_templates[turn % len(all_templates)]
        messages = conversation(rng)
        found = ranges(toks[name], source, stops, messages)
        if found is None:
            left_out += 1
            in_vain[name] = in_vain.get(name, 0) + 1
            if in_vain[name] > 30 and not out[name]["rows"]:  # one that is no template of conversations
                all_templates = [t for t in all_templates if t[0] != name]
            turn += 1
            continue
        text, spans = found
        out[name]["marks"] = sorted({*out[name]["marks"], *re.findall(r"<\|[a-z_]+\|>", text)})
        cut = tokens(text, stops)
        answers = []
        for begin, end in spans:
            inside = [t for t in cut if t[0] < end and t[1] > begin]
            answers.append({"begin": len(text[:begin].encode()), "end": len(text[:end].encode()), "tokens": sum(
                1 if text[a:b] in stops or b - a > 1 else len(text[a:b].encode()) for a, b in inside),
                "first": text[inside[0][0]:inside[0][1]], "last": text[inside[-1][0]:inside[-1][1]]})
        out[name]["rows"].append({"messages": messages, "answers": answers})
        done += 1
        turn += 1
    with open(os.path.join(GOLDEN, "chat_masks.json"), "w") as f:
        json.dump({"left_out": left_out, "templates": [t for t in out.values() if t["rows"]]}, f, ensure_ascii=False, separators=(",", ":"))
        f.write("\n")
    print(done, "conversations over", sum(bool(t["rows"]) for t in out.values()), "templates;", left_out, "left out")


main()
