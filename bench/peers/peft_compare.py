#!/usr/bin/env python3
"""Log-probabilities of a Hugging Face model with a PEFT adapter in float32, against those of Sluice.

    build/bench/bench/adapter_logps --model DIR --adapter DIR --write --ids 5,17,3 > sluice.json
    peft_compare.py --model DIR --adapter DIR sluice.json

Fails when an element differs by more than --tolerance times the largest one.
"""
import argparse
import json
import sys


def parse():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", required=True)
    p.add_argument("--adapter", help="a PEFT folder; without it the base alone")
    p.add_argument("sluice", help="a JSON file: ids, and logps [ids, vocabulary]")
    p.add_argument("--tolerance", type=float, default=2e-5, help="of the largest logit (float32 through a few layers)")
    return p.parse_args()


def logits_of(args, ids):
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32)
    if args.adapter:
        from peft import PeftModel
        model = PeftModel.from_pretrained(model, args.adapter)
    with torch.no_grad():
        return model.eval()(input_ids=torch.tensor([ids])).logits[0].float()


def main():
    args = parse()
    import torch
    with open(args.sluice) as f:
        sluice = json.load(f)
    ours = torch.tensor(sluice["logps"], dtype=torch.float64)
    logps = torch.log_softmax(logits_of(args, sluice["ids"]).double(), -1)
    if ours.shape != logps.shape:
        print(f"sluice's are {list(ours.shape)}, peft's {list(logps.shape)}")
        return 1
    scale = float(logps.abs().max())
    worst = float((ours - logps).abs().max()) / scale
    print(f"{list(ours.shape)} log-probabilities: largest difference {worst:.2e} of the largest, {scale:.3f}; allowed {args.tolerance:.0e}")
    return 0 if worst <= args.tolerance else 1


if __name__ == "__main__":
    sys.exit(main())
