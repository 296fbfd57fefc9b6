"""Runs both sides in turn and prints ratios. Called by run.sh."""

import json
import os
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
PASSES, RAO_LOG = os.environ["PASSES"], os.environ["RAO_LOG"]
# Turns: the sides take turns, so that other work on the machine meets both; the median is told.
TURNS = int(os.environ.get("TURNS", "3"))


def run(command, threads, **more):
    env = os.environ | {"RAYON_NUM_THREADS": str(threads), "OMP_NUM_THREADS": str(threads)}
    return subprocess.run(command, env=env, check=True, stdout=subprocess.PIPE, text=True, **more).stdout


def rival(*args, threads):
    return json.loads(run([sys.executable, str(HERE / "rival.py"), *map(str, args), str(threads)], threads))


def median(turns, *path):
    def at(value):
        for key in path:
            value = value[key]
        return value

    return statistics.median(at(turn) for turn in turns)


def passes(shape, batch, length, threads=1):
    ours, theirs = [], []
    for _ in range(TURNS):
        ours.append(json.loads(run([PASSES, shape, str(batch), str(length)], threads)))
        theirs.append(rival("passes", shape, batch, length, threads=threads))
    unit = "per_cpu_second" if threads == 1 else "per_second"
    for part in ("forward", "backward"):
        a, b = median(ours, part, unit), median(theirs, part, unit)
        name = "forward" if part == "forward" else "forward + backward"
        print(f"{shape:6} B{batch} T{length} {threads} thread(s) {name:18} {a:10.0f} {b:10.0f} tok/s {unit:14} ratio {a / b:.2f}")
    a, b = median(ours, "peak_mib"), median(theirs, "peak_mib")
    print(f"{shape:6} peak memory {a:.0f} MiB against {b:.0f} MiB, ratio {a / b:.2f}", flush=True)


def train(work, threads=1):
    log, out, model = work / "log", work / "out", HERE.parent.parent / "policy" / "mini"
    for folder in (log, out, work / "plain"):
        shutil.rmtree(folder, ignore_errors=True)
    tasks = os.environ.get("TASKS", "16")
    record = ["record", "--log", log, "--policy", "mini", "--tasks", tasks, "--group", "8", "--seed", "1", "--json"]
    print("batch:", end=" ")
    done = json.loads(run([RAO_LOG, *map(str, record)], 2).strip().splitlines()[-1])
    events = work / "events.jsonl"
    events.write_text(run([RAO_LOG, "tail", "--log", str(log), "--json", done["run"]], 1))
    # A small rate: the weights stay near those that sampled, whatever is timed.
    flags = ["--epochs", "8", "--lr", "1e-6", "--log", str(log), "--threads", str(threads)]
    ours, plain, theirs = [], [], []
    for _ in range(TURNS):
        for place, more, into in ((out, [], ours), (work / "plain", ["--no-prefix-sharing"], plain)):
            shutil.rmtree(place, ignore_errors=True)
            last = json.loads(run([RAO_LOG, "train", done["run"], "--out", str(place), "--json", *flags, *more], threads))
            rates = [json.loads(line) for line in (place / "timings.jsonl").read_text().splitlines()]
            rate = max(r["tokens_per_second"] for r in rates)
            # CPU seconds tick in hundredths: take all steps together.
            tokens, cpu = len(rates) * last["last"]["summed_tokens"], sum(r["cpu_seconds"] for r in rates)
            into.append({"per_second": rate, "per_cpu_second": tokens / cpu, "peak_mib": last["peak_bytes"] / 2**20, "last": last["last"]})
        best = [rival("train", events, out, micro, threads=threads) for micro in (16, 32)]
        theirs.append(max(best, key=lambda b: b["per_cpu_second"]))
    step = ours[-1]["last"]
    padded = theirs[-1]
    print(f"{step['trajectories']} trajectories, {step['summed_tokens']} tokens, {step['model_tokens']} run with prefix sharing,"
          f" {padded['padded']} padded; largest change of a logprob by the training, as PyTorch sees it, {padded['largest_logprob_difference']:.1e}")
    for unit in ("per_cpu_second", "per_second"):
        a, p, b = median(ours, unit), median(plain, unit), median(theirs, unit)
        print(f"training step, {threads} thread(s): {a:.0f} useful tok/s {unit} (without sharing {p:.0f}), PyTorch {b:.0f},"
              f" ratio {a / b:.2f}")
    print(f"peak memory {median(ours, 'peak_mib'):.0f} MiB against {median(theirs, 'peak_mib'):.0f} MiB", flush=True)


def decode(model, gguf):
    """32 rows, 64 and one, on one thread and on two; the sides take turns. Rates are of the second and of the processor's second."""
    program, shared, tokens = os.environ["DECODE"], 64, int(os.environ.get("TOKENS", "32"))
    script = [sys.executable, str(HERE / "decode.py")]
    last = lambda text: json.loads(text.strip().splitlines()[-1])
    rates = {}
    for rows in (32, 64, 1):
        ours, torch, llama = {1: [], 2: []}, {1: [], 2: []}, {1: [], 2: []}
        for _ in range(TURNS):
            for threads in (1, 2):
                shape = [str(rows), str(shared), str(tokens)]
                ours[threads].append(last(run([program, model, *shape, str(threads)], threads)))
                torch[threads].append(last(run([*script, "torch", "smol", *shape, str(threads)], threads)))
                if gguf:
                    llama[threads].append(last(run([*script, "llama", gguf, *shape, str(threads)], threads, stderr=subprocess.DEVNULL)))
        for threads in (1, 2):
            for unit in ("per_cpu_second", "per_second"):
                a, b = median(ours[threads], unit), median(torch[threads], unit)
                line = f"decode {rows:2} rows {threads} thread(s) {unit:14} {a:7.1f} tok/s, PyTorch {b:7.1f} ratio {a / b:.2f}"
                if gguf:
                    c = median(llama[threads], unit)
                    line += f", llama.cpp Q4 {c:7.1f} ratio {a / c:.2f}"
                print(line)
        one, two = rates[rows, 1], rates[rows, 2] = [median(ours[threads], "per_second") for threads in (1, 2)]
        print(f"decode {rows:2} rows, two threads {two / one:.2f} x one; peak memory {median(ours[1], 'peak_mib'):.0f} MiB,"
              f" PyTorch {median(torch[1], 'peak_mib'):.0f} MiB", flush=True)
    print(f"decode 32 rows for each thread, two threads {rates[64, 2] / rates[32, 1]:.2f} x one", flush=True)
    for length in (64, 512, 2048):
        runs = [last(run([program, model, "2", str(length), "1", "1"], 1)) for _ in range(TURNS)]
        cold, warm = median(runs, "first_token_cold"), median(runs, "first_token_warm")
        print(f"first token after {length} shared tokens and 8 own: cold {cold:.3f} s, warm {warm:.3f} s, ratio {warm / cold:.2f}", flush=True)


def main():
    work, *what = sys.argv[1:]
    what = what or ["passes", "train"]
    if "passes" in what:
        passes("micro", 16, 128)
        passes("tiny", 8, 128)
    if "smol" in what:
        passes("smol", 2, 256)
        passes("smol", 4, 256, threads=2)
    if "decode" in what:
        decode(os.environ["MODEL"], os.environ.get("GGUF"))
    if "train" in what:
        train(Path(work))
        train(Path(work), threads=2)


main()
