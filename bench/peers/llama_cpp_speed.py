#!/usr/bin/env python3
"""Prefill and decode speed of llama.cpp (llama-cpp-python) on a GGUF file, as one line of JSON.

    llama_cpp_speed.py model.gguf --prompt 512 --decode 128 --threads 2
"""
import argparse
import json
import statistics
import time


def parse():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model")
    p.add_argument("--prompt", type=int, default=512, help="tokens of the prompt")
    p.add_argument("--decode", type=int, default=128, help="tokens decoded after it, one at a time")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--repeats", type=int, default=5)
    return p.parse_args()


def main():
    args = parse()
    import llama_cpp

    llm = llama_cpp.Llama(args.model, n_ctx=args.prompt + args.decode, n_batch=args.prompt, n_ubatch=args.prompt,
                          n_threads=args.threads, n_threads_batch=args.threads, verbose=False)
    ids = [(i * 7919 + 13) % llm.n_vocab() for i in range(args.prompt)]
    prefill, decode = [], []
    for repeat in range(args.repeats + 1):
        llm.reset()
        begin = time.perf_counter()
        llm.eval(ids)
        middle = time.perf_counter()
        for i in range(args.decode):
            llm.eval([ids[i % args.prompt]])
        end = time.perf_counter()
        if repeat > 0:  # the first warms up
            prefill.append(args.prompt / (middle - begin))
            decode.append(args.decode / (end - middle))
    print(json.dumps({
        "peer": f"llama-cpp-python {llama_cpp.__version__}", "prompt": args.prompt, "decode": args.decode,
        "threads": args.threads, "prefill_tokens_per_second": round(statistics.median(prefill), 1),
        "decode_tokens_per_second": round(statistics.median(decode), 1)}))


if __name__ == "__main__":
    main()
