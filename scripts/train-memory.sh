#!/bin/sh
# Peak memory and speed of `train` over a small log and a large one: memory must not follow the log, time must follow the
# distinct tokens.
#
#   scripts/train-memory.sh [TASKS_SMALL] [TASKS_LARGE]     (default 150 and 1500 tasks of 8 rollouts: about 10 and 100 MB)
set -eu
cd "$(dirname "$0")/.."
rao=${RAO_LOG:-target/release/rao-log}
small=${1:-150}
large=${2:-1500}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

field() { sed -n "s/.*\"$1\": *\([0-9.]*\).*/\1/p" | head -n 1; }

for tasks in "$small" "$large"; do
    log=$work/log-$tasks
    "$rao" record --log "$log" --policy mini --tasks "$tasks" --group 8 --seed 1 >/dev/null
    bytes=$("$rao" verify --log "$log" | sed -n 's/.*, \([0-9]*\) bytes in.*/\1/p')
    "$rao" train latest --log "$log" --out "$work/out-$tasks" --threads 1 --json >"$work/trained"
    peak=$(field peak_bytes <"$work/trained")
    distinct=$(field model_tokens <"$work/trained")
    summed=$(field summed_tokens <"$work/trained")
    seconds=$(sed -n 's/.*"cpu_seconds":\([0-9.]*\).*/\1/p' "$work/out-$tasks/timings.jsonl")
    echo "$tasks tasks: log $((bytes / 1000000)) MB, peak $((peak / 1048576)) MiB, $distinct distinct of $summed tokens," \
        "$seconds CPU s, $(awk "BEGIN { printf \"%.1f\", 1e6 * $seconds / $distinct }") CPU us a distinct token"
    eval "peak_$tasks=$peak"
done
eval "first=\$peak_$small second=\$peak_$large"
awk "BEGIN { printf \"peak memory, large log against small: %.3f\n\", $second / $first }"
