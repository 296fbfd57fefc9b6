#!/bin/sh
# Adapters in both directions between this program and Python's peft:
#   one that `train --lora` made is loaded by peft, which must give the log-probabilities that the sampler logged;
#   one that peft made is loaded by `record --adapter`, and peft must again agree.
#
#   scripts/check-peft.sh        PYTHON names an interpreter with torch, transformers and peft [default: python3]
set -eu
cd "$(dirname "$0")/.."
rao=${RAO_LOG:-target/release/rao-log}
python=${PYTHON:-python3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
flags="--log $work/log --max-tokens 24 --max-steps 2 --tasks 2 --group 2"

"$rao" record --log "$work/log" --policy oracle --tokenizer bytes --tasks 4 --group 1 >/dev/null
"$rao" init "$work/base" --log "$work/log" --from latest --vocab 320 --hidden 32 --layers 2 --heads 4 --kv-heads 2 --ffn 48 >/dev/null
"$rao" record $flags --policy "local:$work/base" >/dev/null
"$rao" train latest --log "$work/log" --lora 4 --lora-targets q_proj,v_proj,down_proj --lr 0.05 --loss sft --sft-filter all --steps 4 \
    --out "$work/ours" --merge-into "$work/merged" >/dev/null
"$rao" record $flags --policy "local:$work/ours" >/dev/null
"$rao" tail --log "$work/log" --json latest >"$work/ours.jsonl"
"$python" scripts/check-peft.py compare "$work/base" "$work/ours" "$work/ours.jsonl" "$work/merged"

"$python" scripts/check-peft.py make "$work/base" "$work/theirs"
"$rao" record $flags --policy "local:$work/base" --adapter "$work/theirs" >/dev/null
"$rao" tail --log "$work/log" --json latest >"$work/theirs.jsonl"
"$python" scripts/check-peft.py compare "$work/base" "$work/theirs" "$work/theirs.jsonl"
