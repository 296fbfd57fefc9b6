#!/usr/bin/env bash
# Remakes the policy `mini` from nothing: texts of the oracle, a tokenizer trained on them, seeded random weights,
# and supervised steps on what the oracle does in freshly generated worlds. Nothing is downloaded. The same machine
# gives the same bytes; another kind of processor may round differently.
#
#   scripts/make-mini.sh [FOLDER]     keeps its work in FOLDER (target/mini) and installs nothing
#   scripts/make-mini.sh --install    also copies the result to policy/mini
set -euo pipefail
cd "$(dirname "$0")/.."

install=no
if [ "${1:-}" = --install ]; then install=yes; shift; fi
work=${1:-target/mini}
steps=${MINI_STEPS:-600}

cargo build --release --ignore-rust-version --bin rao-log
rao=target/release/rao-log
rm -rf "$work"
mkdir -p "$work"

echo "== texts for the tokenizer"
"$rao" record --log "$work/texts" --policy oracle --tokenizer bytes --preset tiny --tasks 300 --group 1 --seed 1 >/dev/null
"$rao" init "$work/untrained" --log "$work/texts" --from latest --vocab 640 --token-bytes 96 \
    --hidden 160 --layers 3 --heads 4 --kv-heads 2 --ffn 384 --seed 1

echo "== what the oracle does in fresh worlds"
"$rao" record --log "$work/log" --policy oracle --tokenizer "$work/untrained" --preset tiny --tasks 8000 --group 1 \
    --seed 2 --json >"$work/record.json"
digest=$(sed -n 's/.*"content_digest": *"\([0-9a-f]*\)".*/\1/p' "$work/record.json" | tail -n 1)
echo "log: content digest $digest"

# Without sharing, gradients round as they did when the committed weights were made.
echo "== $steps supervised steps"
"$rao" train latest --log "$work/log" --loss sft --model "$work/untrained" --out "$work/trained" \
    --no-prefix-sharing --steps "$steps" --batch 16 --lr 0.003 --warmup 100 --decay cosine --horizon "$steps" --floor 0.02 | tail -n 4

echo "== rates"
"$rao" eval --log "$work/eval" --policy "local:$work/trained" --preset tiny --tasks 300 --split val

if [ "$install" = yes ]; then
    cp "$work/trained/config.json" "$work/trained/tokenizer.json" "$work/trained/model.safetensors" policy/mini/
    printf 'content digest of the log that the weights were trained on (scripts/make-mini.sh):\n%s\n' "$digest" >policy/mini/TRAINED_ON
    echo "installed in policy/mini"
fi
