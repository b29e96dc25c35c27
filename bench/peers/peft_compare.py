#!/usr/bin/env python3
"""Logits of a Hugging Face model with a PEFT adapter in float32, and their comparison with those of Sluice.

    peft_compare.py --model DIR --adapter DIR --ids 5,17,3                      # prints {"ids": […], "logits": [[…]…]}
    peft_compare.py --model DIR --adapter DIR --ids 5,17,3 --compare sluice.json

sluice.json holds the same object. Fails when an element differs by more than --tolerance times the largest logit.
"""
import argparse
import json
import sys


def parse():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", required=True)
    p.add_argument("--adapter", help="a PEFT folder; without it the base alone")
    p.add_argument("--ids", required=True, help="token ids, separated by commas")
    p.add_argument("--compare", help="a JSON file with Sluice's logits")
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
    ids = [int(i) for i in args.ids.split(",")]
    logits = logits_of(args, ids)
    if not args.compare:
        json.dump({"ids": ids, "logits": logits.tolist()}, sys.stdout)
        print()
        return 0
    import torch
    with open(args.compare) as f:
        ours = torch.tensor(json.load(f)["logits"], dtype=torch.float64)
    if ours.shape != logits.shape:
        print(f"sluice's logits are {list(ours.shape)}, peft's {list(logits.shape)}")
        return 1
    scale = float(logits.abs().max())
    worst = float((ours - logits.double()).abs().max()) / scale
    print(f"largest difference {worst:.2e} of the largest logit {scale:.3f}; allowed {args.tolerance:.0e}")
    return 0 if worst <= args.tolerance else 1


if __name__ == "__main__":
    sys.exit(main())
