"""Golden rows: what the tools that a row comes from make of it.

    python3 -m venv venv && venv/bin/pip install transformers datasets jinja2 rich accelerate && venv/bin/pip install --no-deps trl llamafactory axolotl mlx-lm
    venv/bin/python tests/oracle/make_rows_golden.py         # writes tests/golden/rows/; made with trl 1.16.0, llamafactory 0.9.5, axolotl 0.19.0, mlx-lm 0.32.2

Each file holds cases {"row", "reads": sft | pair | rated, "columns"?, "want": [conversation, …]}: one conversation for sft, chosen and rejected for a pair,
one or two for rated rows. A conversation is {"messages", "first_target"?, "tools"?, "label"?}, or {"ids", "labels"} of text that is ready, by the tokenizer
beside it. To add a case add a row to a list here; a case that no package covers can be put into a file by hand.
"""
import copy
import importlib
import json
import os
import sys
import types

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast
from trl.data_utils import extract_prompt, maybe_convert_to_chatml, maybe_unpair_preference_dataset

GOLDEN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "golden", "rows")


def bare(name):
    """A package without what its __init__ imports, so that one module of it runs without the rest."""
    parts = name.split(".")
    for i in range(1, len(parts)):
        package = ".".join(parts[:i])
        if package not in sys.modules:
            module = types.ModuleType(package)
            module.__path__ = [os.path.join(p, *parts[:i]) for p in sys.path if os.path.isdir(os.path.join(p, *parts[:i]))]
            sys.modules[package] = module
    return importlib.import_module(name)


def stub(name, **attributes):
    """What a module imports and does not need here."""
    module = types.ModuleType(name)
    module.__dict__.update(attributes)
    sys.modules[name] = module


def write(name, cases):
    with open(os.path.join(GOLDEN, name + ".json"), "w") as f:
        f.write("[\n" + ",\n".join(json.dumps(c, ensure_ascii=False) for c in cases) + "\n]\n")
    print(name, len(cases))


def tokenizer():
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("Ġ", "t"), ("h", "e"), ("Ġt", "he"), ("i", "n"), ("a", "n"), ("Ġ", "b"), ("Ġ", "i"), ("Ġi", "s")]
    vocabulary = {t: i for i, t in enumerate(letters + [a + b for a, b in merges])}
    t = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    t.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in ("<s>", "</s>")])
    bos = t.token_to_id("<s>")
    t.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", bos)])
    t.save(os.path.join(GOLDEN, "tokenizer.json"))
    return PreTrainedTokenizerFast(tokenizer_object=t, bos_token="<s>", eos_token="</s>")


def trl_cases():
    cases = []
    turns = [{"from": "user", "value": "What color is the sky?"}, {"from": "assistant", "value": "It is blue."}]
    sft = [{"conversations": turns}, {"messages": turns},
           {"conversations": [{"role": "system", "content": "S"}, {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]},
           {"prompt": turns[:1], "completion": turns[1:]}]
    for row in sft:
        made = maybe_convert_to_chatml(copy.deepcopy(row))
        messages = made["messages"] if "messages" in made else made["prompt"] + made["completion"]
        want = {"messages": messages, "first_target": len(made["prompt"]) if "prompt" in made else 0}
        cases.append({"row": row, "reads": "sft", "want": [want]})

    def whole(answer, key="content", role="role"):
        return [{role: "user", key: "q"}, {role: "assistant", key: "a1"}, {role: "user", key: "q2"}, {role: "assistant", key: answer}]
    for row in [{"chosen": whole("yes"), "rejected": whole("no")}, {"chosen": whole("yes", "value", "from"), "rejected": whole("no", "value", "from")},
                {"prompt": "q", "chosen": whole("yes"), "rejected": whole("no")}]:
        made = extract_prompt(maybe_convert_to_chatml(copy.deepcopy(row)))
        cases.append({"row": row, "reads": "pair", "want": [{"messages": made["prompt"] + made[k], "first_target": len(made["prompt"])} for k in ("chosen", "rejected")]})
    from datasets import Dataset
    for row in [{"prompt": [{"role": "user", "content": "q"}], "chosen": [{"role": "assistant", "content": "yes"}], "rejected": [{"role": "assistant", "content": "no"}]}]:
        made = maybe_unpair_preference_dataset(Dataset.from_list([row]))
        want = [{"messages": r["prompt"] + r["completion"], "first_target": 1, "label": r["label"]} for r in made]
        cases.append({"row": row, "reads": "rated", "want": want})
    write("trl", cases)


def text_cases(tok):
    """Text that is ready, as mlx-lm (text) and TRL (text, pairs of strings without a prompt) tokenise it, and Axolotl's input_output."""
    stub("mlx_lm.cli_ui", rprint=print)
    stub("axolotl.prompt_tokenizers", PromptTokenizingStrategy=object)
    stub("axolotl.prompters", IGNORE_TOKEN_ID=-100, Prompter=object)
    datasets = bare("mlx_lm.tuner.datasets")
    strategy = bare("axolotl.prompt_strategies.input_output").RawInputOutputStrategy
    prompter = sys.modules["axolotl.prompt_strategies.input_output"].RawInputOutputPrompter()
    cases = []
    for text in ["the sky is blue", "the end</s>", " in the beginning ", "<s>twice?", "Zürich 你好\n\nthe"]:
        ids, _ = datasets.TextDataset([], tok).process({"text": text})
        with_eos = text if text.endswith(tok.eos_token) else text + tok.eos_token
        if not text.startswith("<s>"):  # TRL doubles a BOS that the text has
            assert tok(with_eos)["input_ids"] == ids, text
        else:
            ids = tok(with_eos, add_special_tokens=False)["input_ids"]
        cases.append({"row": {"text": text}, "reads": "sft", "want": [{"ids": ids, "labels": [0] + [1] * (len(ids) - 1)}]})
    for segments in [[(False, "<s>Q: the sky?\n"), (True, "blue</s>")], [(True, "a"), (False, " the b"), (True, " in</s>")], [(True, "all")]]:
        row = {"segments": [{"label": label, "text": text} for label, text in segments]}
        fake = types.SimpleNamespace(tokenizer=tok, prompter=prompter, train_on_inputs=False)
        made = strategy.tokenize_prompt(fake, row)
        labels = [0 if i == 0 or label == -100 else 1 for i, label in enumerate(made["labels"])]
        cases.append({"row": row, "reads": "sft", "want": [{"ids": made["input_ids"], "labels": labels}]})
    for chosen, rejected in [("The sky is blue.", "The sky is green."), ("x: the end", "x: an end"), ("Zürich ä", "Zürich ö")]:
        row = {"chosen": chosen, "rejected": rejected}
        made, want = extract_prompt(row), []
        for key in ("chosen", "rejected"):
            prompt, answer = tok(made["prompt"])["input_ids"], tok(made[key] + tok.eos_token, add_special_tokens=False)["input_ids"]
            want.append({"ids": prompt + answer, "labels": [0] * len(prompt) + [1] * len(answer)})
        cases.append({"row": row, "reads": "pair", "want": want})
    write("text", cases)


def chat(messages):
    """LLaMA-Factory's roles as a chat template has them."""
    out = []
    for m in messages:
        if m["role"] == "function":
            calls = json.loads(m["content"])
            out.append({"role": "assistant", "tool_calls": [{"type": "function", "function": c} for c in (calls if isinstance(calls, list) else [calls])]})
        else:
            out.append({"role": {"observation": "tool"}.get(m["role"], m["role"]), "content": m["content"]})
    return out


def llama_factory_cases():
    stub("llamafactory.extras")
    sys.modules["llamafactory.extras"].logging = types.SimpleNamespace(get_logger=lambda _: None)
    roles = types.SimpleNamespace(**{r.upper(): types.SimpleNamespace(value=r) for r in ("user", "assistant", "system", "function", "observation")})
    stub("llamafactory.data.data_utils", Role=roles)
    converter = bare("llamafactory.data.converter")
    names = dict(load_from="file", ranking=False, images=None, videos=None, audios=None, kto_tag=None, system=None, tools=None, history=None, prompt=None,
                 query=None, response=None, messages=None, chosen=None, rejected=None, role_tag="from", content_tag="value", user_tag="human",
                 assistant_tag="gpt", observation_tag="observation", function_tag="function_call", system_tag="system")

    def made(row, kind, **own):
        given = {**names, **own}
        return getattr(converter, kind)(types.SimpleNamespace(**given), types.SimpleNamespace(media_dir=""))(copy.deepcopy(row))

    def before(m):
        return ([{"role": "system", "content": m["_system"]}] if m["_system"] else []) + chat(m["_prompt"])
    cases = []
    alpaca = [{"instruction": "Add.", "input": "2 2", "output": "4"}, {"instruction": "Say yes.", "input": "", "output": "yes"},
              {"instruction": "and now?", "input": "x", "output": "c", "system": "Be brief.", "history": [["q1", "a1"], ["q2", "a2"]]}]
    for row in alpaca:
        m = made(row, "AlpacaDatasetConverter", prompt="instruction", query="input", response="output", **{k: k for k in ("system", "history") if k in row})
        cases.append({"row": row, "reads": "sft", "want": [{"messages": before(m) + chat(m["_response"]), "first_target": 0}]})
    renamed = {"ask": "Add.", "with": "2 2", "reply": "4"}
    m = made(renamed, "AlpacaDatasetConverter", prompt="ask", query="with", response="reply")
    cases.append({"row": renamed, "columns": {"instruction": "ask", "input": "with", "output": "reply"}, "reads": "sft",
                  "want": [{"messages": before(m) + chat(m["_response"]), "first_target": 0}]})
    pair = {"instruction": "Add.", "input": "2 2", "chosen": "4", "rejected": "5", "system": "S"}
    m = made(pair, "AlpacaDatasetConverter", prompt="instruction", query="input", system="system", chosen="chosen", rejected="rejected", ranking=True)
    cases.append({"row": pair, "reads": "pair", "want": [{"messages": before(m) + [r], "first_target": len(before(m))} for r in chat(m["_response"])]})
    kto = {"instruction": "Add.", "input": "2 2", "output": "5", "kto_tag": False}
    m = made(kto, "AlpacaDatasetConverter", prompt="instruction", query="input", response="output", kto_tag="kto_tag")
    cases.append({"row": kto, "reads": "rated", "want": [{"messages": before(m) + [r for r in chat(m["_response"]) if r["content"]], "first_target": 1, "label": False}]})

    tools = [{"name": "add", "description": "Adds.", "parameters": {"type": "object", "properties": {}}}]
    call = json.dumps({"name": "add", "arguments": {"b": 1, "a": 2.0}})
    talk = [{"from": "human", "value": "1 + 2?"}, {"from": "function_call", "value": call}, {"from": "observation", "value": "3"}, {"from": "gpt", "value": "three"}]
    shares = [{"conversations": talk, "system": "Be brief.", "tools": json.dumps(tools)}, {"conversations": [{"from": "system", "value": "S"}] + talk},
              {"conversations": [talk[0], {"from": "function_call", "value": f"[{call}, {call}]"}]}]
    for row in shares:
        m = made(row, "SharegptDatasetConverter", messages="conversations", **{k: k for k in ("system", "tools") if k in row})
        want = {"messages": before(m) + chat(m["_response"]), "first_target": 0}
        if m["_tools"]:
            want["tools"] = [{"type": "function", "function": t} for t in json.loads(m["_tools"])]
        cases.append({"row": row, "reads": "sft", "want": [want]})
    own = {"dialog": [{"who": "human", "says": "hi"}, {"who": "gpt", "says": "hello"}]}
    m = made(own, "SharegptDatasetConverter", messages="dialog", role_tag="who", content_tag="says")
    cases.append({"row": own, "columns": {"messages": "dialog", "role": "who", "content": "says"}, "reads": "sft",
                  "want": [{"messages": before(m) + chat(m["_response"]), "first_target": 0}]})
    pair = {"conversations": talk[:1], "chosen": {"from": "gpt", "value": "3"}, "rejected": {"from": "gpt", "value": "4"}, "system": "S"}
    m = made(pair, "SharegptDatasetConverter", messages="conversations", system="system", chosen="chosen", rejected="rejected", ranking=True)
    cases.append({"row": pair, "reads": "pair", "want": [{"messages": before(m) + [r], "first_target": len(before(m))} for r in chat(m["_response"])]})
    kto = {"conversations": [talk[0], {"from": "gpt", "value": "three"}], "kto_tag": True}
    m = made(kto, "SharegptDatasetConverter", messages="conversations", kto_tag="kto_tag")
    cases.append({"row": kto, "reads": "rated", "want": [{"messages": before(m) + [r for r in chat(m["_response"]) if r["content"]], "first_target": 1, "label": True}]})
    write("llama_factory", cases)


def of_chatml(text):
    """Messages of a ChatML text as Axolotl's strategies write it."""
    turns = [t.split("\n", 1) for t in text.replace("<|im_end|>\n", "<|im_end|>").replace("<|im_end|>", "").split("<|im_start|>")[1:]]
    return [{"role": role, "content": content} for role, content in turns]


def axolotl_cases():
    chatml = bare("axolotl.prompt_strategies.dpo.chatml")
    kto = bare("axolotl.prompt_strategies.kto.chatml")
    answers = {"chosen": "yes", "rejected": "no"}
    conversation = [{"role": "user", "content": "q"}]
    cases = []
    for strategy, row in [("intel", {"system": "S", "question": "q", **answers}), ("intel", {"system": "", "question": "q", **answers}),
                          ("icr", {"system": "S", "input": "q", **answers}), ("prompt_pairs", {"system": "S", "prompt": "q", **answers}),
                          ("default", {"system": "S", "instruction": "q", "chosen_response": "yes", "rejected_response": "no"}),
                          ("ultra", {"prompt": "q", "chosen": conversation + [{"role": "assistant", "content": "yes"}], "rejected": conversation + [{"role": "assistant", "content": "no"}]}),
                          ("argilla_chat", {"chosen": conversation + [{"role": "assistant", "content": "yes"}], "rejected": conversation + [{"role": "assistant", "content": "no"}]})]:
        m = getattr(chatml, strategy)(None)(copy.deepcopy(row))
        prompt = of_chatml(m["prompt"])[:-1]  # the last opens the answer
        want = [{"messages": prompt + [{"role": "assistant", "content": m[k].removesuffix("<|im_end|>")}], "first_target": len(prompt)} for k in ("chosen", "rejected")]
        cases.append({"row": row, "reads": "pair", "want": want})
    for strategy, row in [("intel", {"system": "S", "question": "q", "completion": "a", "label": True}),
                          ("ultra", {"system": "S", "prompt": "q", "completion": "a", "label": True})]:
        m = getattr(kto, strategy)(None)(copy.deepcopy(row))
        prompt = of_chatml(m["prompt"])[:-1]
        want = {"messages": prompt + [{"role": "assistant", "content": m["completion"].removesuffix("<|im_end|>")}], "first_target": len(prompt), "label": row["label"]}
        cases.append({"row": row, "reads": "rated", "want": [want]})
    write("axolotl", cases)


def without_null(value):
    if isinstance(value, dict):
        return {k: without_null(v) for k, v in value.items() if v is not None}
    return [without_null(v) for v in value] if isinstance(value, list) else value


def parquet():
    """A Parquet file of two row groups and the same rows as JSON lines, as pyarrow reads them, without the nulls of its structs."""
    import pyarrow
    import pyarrow.parquet
    call = {"role": "assistant", "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": "{\"x\": 1.5}"}}]}
    rows = [{"messages": [{"role": "user", "content": f"q{i} é"}, {"role": "assistant", "content": "a" * i}] + ([call] if i % 2 else []),
             "id": i, "score": i / 4, "train": i != 2, "source": None if i == 1 else "web"} for i in range(150)]
    folder = os.path.join(GOLDEN, "..", "parquet")
    os.makedirs(folder, exist_ok=True)
    table = pyarrow.Table.from_pylist(rows)
    table = table.set_column(4, "source", table["source"].dictionary_encode())
    pyarrow.parquet.write_table(table, os.path.join(folder, "rows.parquet"), row_group_size=100, compression="zstd")
    with open(os.path.join(folder, "rows.jsonl"), "w") as f:
        for row in pyarrow.parquet.read_table(os.path.join(folder, "rows.parquet")).to_pylist():
            f.write(json.dumps(without_null(row), ensure_ascii=False) + "\n")


def main():
    os.makedirs(GOLDEN, exist_ok=True)
    parquet()
    trl_cases()
    text_cases(tokenizer())
    llama_factory_cases()
    axolotl_cases()


main()
