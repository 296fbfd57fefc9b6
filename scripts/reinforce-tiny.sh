#!/usr/bin/env bash
# Twenty iterations of reinforcement from `mini` on the tiny preset: success on the same 1,000 validation tasks before and
# after, sampled (as trained) and greedy, with 95 % intervals. docs/results.md holds a run of this.
#
#   scripts/reinforce-tiny.sh [FOLDER]     keeps its log and checkpoint in FOLDER (target/reinforce)
set -euo pipefail
cd "$(dirname "$0")/.."

work=${1:-target/reinforce}
iterations=${ITERATIONS:-20}
cargo build --release --ignore-rust-version --bin rao-log
rao=target/release/rao-log
rm -rf "$work"
mkdir -p "$work"

# Tiny items are two crafts deep, so one level of delegation is all that helps. Deeper nodes are rare mistakes, and Eq. 4
# would give those few trajectories most of the gradient.
rates() {
    for temperature in 1 0; do
        "$rao" eval --log "$work/$1" --policy "$2" --preset tiny --tasks 1000 --split val --seed 100 --max-depth 1 \
            --width 200 --temperature "$temperature"
    done
}

echo "== before: sampled, then greedy"
rates before mini

echo "== $iterations iterations"
"$rao" train --log "$work/log" --iterations "$iterations" --model mini --out "$work/trained" --preset tiny --split train \
    --tasks 96 --group 8 --seed 1000 --max-depth 1 --width 200 --loss cispo --lr 0.0003 --weight-decay 0

echo "== after: sampled, then greedy"
rates after "local:$work/trained"
