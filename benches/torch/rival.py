"""PyTorch's side of the comparison. Prints JSON.

    rival.py passes SHAPE BATCH LENGTH THREADS      forward, forward and backward: tokens per CPU second and per second
    rival.py train EVENTS MODEL MICRO THREADS       a policy-gradient step over recorded trajectories: padded micro-batches of
                                                    MICRO trajectories, every prefix computed again, AdamW at the end
"""

import json
import resource
import sys
import time

import torch

from model import SHAPES, Decoder, load


def measure(units, run, seconds=3.0):
    run()
    best, repeats, begin, cpu = 0.0, 0, time.perf_counter(), time.process_time()
    while repeats < 3 or time.perf_counter() - begin < seconds:
        start = time.perf_counter()
        run()
        best = max(best, units / (time.perf_counter() - start))
        repeats += 1
    return {"per_cpu_second": units * repeats / (time.process_time() - cpu), "per_second": best}


def passes(shape, batch, length):
    torch.manual_seed(0)
    model = Decoder(*SHAPES[shape])
    ids = torch.randint(SHAPES[shape][-1], (batch, length))

    def forward():
        with torch.no_grad():
            model(ids)

    def backward():
        model.zero_grad(set_to_none=True)
        (-model(ids).mean()).backward()

    units = batch * length
    return {"forward": measure(units, forward), "backward": measure(units, backward)}


def trajectories(path):
    """Token sequences with a mask of the generated tokens, from `rao-log tail --json`."""
    nodes = {}
    for line in open(path):
        event = json.loads(line)
        kind, body = event["kind"], event["body"]
        if kind not in ("context_extended", "action_sampled"):
            continue
        key = (event["event"].split("#")[0], body["node"])
        tokens, mask, old = nodes.setdefault(key, ([], [], []))
        more = body["tokens"]
        tokens += more
        acted = kind == "action_sampled"
        mask += [float(acted)] * len(more)
        old += body["logprobs"] if acted else [0.0] * len(more)
    out = []
    for tokens, mask, old in nodes.values():
        end = max((i + 1 for i, m in enumerate(mask) if m), default=0)
        if end:
            out.append((tokens[:end], mask[:end], old[:end]))
    return out


def train(events, folder, micro):
    model = load(folder)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, betas=(0.9, 0.95))
    all_ = trajectories(events)
    # Sorted by length: the padding that is left is the least that whole trajectories allow.
    all_.sort(key=lambda t: len(t[0]))
    batches, loss_tokens = [], sum(sum(t[1]) for t in all_)
    for at in range(0, len(all_), micro):
        part = all_[at : at + micro]
        width = max(len(t[0]) for t in part)
        pad = lambda i, fill, kind: torch.tensor([t[i] + [fill] * (width - len(t[i])) for t in part], dtype=kind)
        batches.append((pad(0, 0, torch.long), pad(1, 0.0, torch.float32), pad(2, 0.0, torch.float32)))
    difference = 0.0

    def step():
        nonlocal difference
        optimizer.zero_grad(set_to_none=True)
        for ids, mask, old in batches:
            lp, mask, old = model(ids), mask[:, 1:], old[:, 1:]
            ratio = ((lp - old) * mask).exp()
            loss = -(ratio.clamp(0, 5).detach() * lp * mask).sum() / loss_tokens
            loss.backward()
            difference = max(difference, float(((lp - old) * mask).abs().max().detach()))
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    step()
    first = difference
    useful = sum(len(t[0]) for t in all_)
    out = measure(useful, step)
    out |= {"trajectories": len(all_), "tokens": useful, "padded": sum(b[0].numel() for b in batches),
            "largest_logprob_difference": first}
    return out


if __name__ == "__main__":
    what, *rest = sys.argv[1:]
    torch.set_num_threads(int(rest[-1]))
    result = passes(rest[0], int(rest[1]), int(rest[2])) if what == "passes" else train(rest[0], rest[1], int(rest[2]))
    result["peak_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    result["torch"] = torch.__version__
    print(json.dumps(result))
