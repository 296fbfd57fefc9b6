#!/bin/sh
# The whole loop with real weights: SmolLM2-135M-Instruct (from the Python package index) records rollouts of TextCraft, which are
# replayed down to the bits of each log-probability, trained on and evaluated. Some minutes on two cores. The model is too small
# for the task; what is checked is that everything runs, that a replay agrees, and that its text is sane.
#
#   scripts/smollm2.sh [FOLDER]     where models and results go (default: models)
set -eu
cd "$(dirname "$0")/.."
program=${RAO_LOG:-target/release/rao-log}
[ -x "$program" ] || { echo "build the program first: cargo rao --help" >&2; exit 1; }
models=$(scripts/fetch-models.sh "${1:-models}")
model=$models/SmolLM2-135M-Instruct.Q4_1.gguf
work=$models/smollm2
rm -rf "$work"
mkdir -p "$work"
log=$work/log
small="--env textcraft --preset tiny --prompt brief --context 2048 --max-steps 2 --max-nodes 4 --max-tokens 40"

echo "== record, sampled"
# shellcheck disable=SC2086
"$program" record --log "$log" --policy "local:$model" --tasks 2 --group 2 --seed 1 $small
echo "== replay, tokens"
"$program" replay latest --log "$log" --check tokens
echo "== record, greedy; its text"
# shellcheck disable=SC2086
"$program" record --log "$log" --policy "local:$model" --tasks 1 --group 1 --seed 2 --temperature 0 $small
"$program" tail latest --log "$log" --kind action_sampled --json >"$work/greedy.jsonl"
python3 - "$work/greedy.jsonl" <<'PY'
import json, re, sys
events = [json.loads(line) for line in open(sys.argv[1])]
def find(value):
    if isinstance(value, dict):
        if "logprobs" in value and "text" in value:
            yield value
        else:
            for inner in value.values():
                yield from find(inner)
actions = [a for event in events for a in find(event)]
greedy = [a for a in actions if a["sampler"]["temperature"] == 0]
assert greedy, "no greedy action"
for action in greedy:
    mean = sum(action["logprobs"]) / len(action["logprobs"])
    words = re.findall(r"[A-Za-z]{2,}", action["text"])
    print(f"{len(action['tokens'])} tokens, mean logprob {mean:.3f}: {action['text'][:120]!r}")
    assert mean > -1.5, "greedy text is not sure of itself"
    assert len(words) >= 5 and all(ord(c) < 0x2500 for c in action["text"]), "greedy text is not words"
PY
echo "== the quantized file itself, frozen"
# shellcheck disable=SC2086
"$program" record --log "$log" --policy "gguf:$model" --tasks 1 --group 1 --seed 1 $small
"$program" replay latest --log "$log" --check tokens
echo "== train on the oracle's transcripts, written with the model's own tokenizer and template: all weights, then an adapter"
"$program" record --log "$log" --policy oracle --tokenizer "$model" --env textcraft --preset tiny --prompt brief --tasks 4 --group 1 --seed 3
"$program" train latest --log "$log" --model "local:$model" --out "$work/trained" --loss sft --steps 2 --batch 2
run=$("$program" list --log "$log" --json | python3 -c 'import json, sys
print([run["run"] for run in json.load(sys.stdin)["runs"] if run["policy"].startswith("oracle")][0])')
"$program" train "$run" --log "$log" --model "local:$model" --out "$work/adapter" --loss sft --steps 2 --batch 2 --lora 8
echo "== eval of what was trained"
# shellcheck disable=SC2086
"$program" eval --policy "local:$work/trained" --log "$work/eval-log" --tasks 2 $small
# shellcheck disable=SC2086
"$program" eval --policy "local:$work/adapter" --log "$work/eval-log" --tasks 2 $small
echo "all of it ran"
