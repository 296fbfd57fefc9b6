"""Python's side of check-peft.sh."""

import json
import sys

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM


def sequences(path):
    """Each node's tokens with the log-probabilities that the sampler logged (None for tokens that it did not draw)."""
    nodes = {}
    for line in open(path):
        event = json.loads(line)
        if event["kind"] not in ("context_extended", "action_sampled"):
            continue
        body = event["body"]
        tokens, logged = nodes.setdefault((event["event"].split("#")[0], body["node"]), ([], []))
        tokens += body["tokens"]
        logged += body.get("logprobs") or [None] * len(body["tokens"])
    return list(nodes.values())


def largest_difference(model, path):
    worst, count = 0.0, 0
    for tokens, logged in sequences(path):
        with torch.no_grad():
            scores = model(torch.tensor([tokens])).logits[0].log_softmax(-1)
        for at, value in enumerate(logged):
            if value is not None:
                worst = max(worst, abs(float(scores[at - 1, tokens[at]]) - value))
                count += 1
    assert count > 20, "too few sampled tokens to compare"
    return worst, count


def main():
    what, base, adapter, *rest = sys.argv[1:]
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    if what == "make":
        torch.manual_seed(3)
        config = LoraConfig(r=3, lora_alpha=9, target_modules=["k_proj", "o_proj", "gate_proj"], task_type="CAUSAL_LM")
        model = get_peft_model(model, config)
        for name, tensor in model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(tensor, std=0.1)
        model.save_pretrained(adapter)
        return
    events, *merged = rest
    plain, _ = largest_difference(model, events)
    assert plain > 1e-3, f"without the adapter nothing changes ({plain:.1e}): the check could not fail"
    for name, adapted in [("adapter", PeftModel.from_pretrained(model, adapter).eval())] + [
        ("merged", AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)) for folder in merged
    ]:
        worst, count = largest_difference(adapted, events)
        assert worst < 1e-4, f"{name}: log-probabilities differ by {worst:.1e}"
        print(f"{name}: {count} log-probabilities agree with peft within {worst:.1e} (without the adapter {plain:.1e})")


main()
