#!/usr/bin/env python3
"""Writes tests/golden/gemma270m_greedy.json: greedy continuations of Gemma 3 270M by llama.cpp, an independent implementation.

    make_gemma_greedy.py gemma-3-270m-q4_k_m.gguf > tests/golden/gemma270m_greedy.json      (llama-cpp-python 0.3.36, CPU)

Each case has the prompt, its ids (the GGUF's tokenizer, <bos> first), the ids that followed, and at each step the gap between the best
and the second-best logit. llama.cpp rounds activations to 8 bits in products with quantised weights, so its logits differ from exact ones
by some 0.1: two implementations may part at a step whose gap is small, and only there.
"""

import ctypes
import json
import sys

import llama_cpp
import numpy as np

NEW_TOKENS = 24
PROMPTS = [
    "The capital of France is",
    "Once upon a time, there was a little",
    "Water boils at a temperature of",
    "def fibonacci(n):\n    ",
    "The three primary colours are",
    "In 1969, the first humans",
    "Der schnelle braune Fuchs",
    "La tour Eiffel se trouve",
    "1, 2, 3, 4, 5,",
    "Dear Sir or Madam,\n\nI am writing to",
    "The theory of relativity was developed by",
    "Ingredients:\n- 2 cups of flour\n- 1",
    "<html>\n<head>\n<title>",
    "To be, or not to be, that is",
    "Q: What is the largest planet in the solar system?\nA:",
    "Photosynthesis is the process by which",
    "The quick brown fox jumps over",
    "SELECT name, age FROM users WHERE",
    "今日は天気が",
    "Roses are red, violets are",
]


def main():
    model = llama_cpp.Llama(model_path=sys.argv[1], n_ctx=256, n_threads=1, n_threads_batch=1, verbose=False)
    cases = []
    for prompt in PROMPTS:
        ids = model.tokenize(prompt.encode(), add_bos=True, special=False)
        model.reset()
        tokens, gaps, feed = [], [], ids
        for _ in range(NEW_TOKENS):
            model.eval(feed)
            row = llama_cpp.llama_get_logits_ith(model._ctx.ctx, -1)
            logits = np.ctypeslib.as_array(ctypes.cast(row, ctypes.POINTER(ctypes.c_float)), (model.n_vocab(),))
            second, best = np.partition(logits, -2)[-2:]
            tokens.append(int(logits.argmax()))
            gaps.append(round(float(best - second), 4))
            feed = tokens[-1:]
        cases.append({"prompt": prompt, "ids": ids, "tokens": tokens, "gaps": gaps})
        print(f"{len(cases)} of {len(PROMPTS)}: {prompt!r} -> {model.detokenize(tokens)!r}", file=sys.stderr, flush=True)
    about = {"model": "gemma-3-270m-q4_k_m.gguf", "made_with": f"llama-cpp-python {llama_cpp.__version__}"}
    print(json.dumps({"about": about, "cases": cases}, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
