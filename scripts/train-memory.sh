#!/bin/sh
# Peak memory and speed of `train` over a small log and a large one: memory must not follow the log, time must follow the
# distinct tokens.
#
#   scripts/train-memory.sh [TASKS_SMALL] [TASKS_LARGE]     `mini`'s own rollouts, 8 of a task (default 150 and 1500 tasks:
#                                                           about 10 and 100 MB), one pass over all of them
#   scripts/train-memory.sh --long [SMALL] [LARGE]          the oracle's rollouts of hard tasks, 12 of a task (default 3 and
#                                                           480 tasks: about 10 MB and 2 GB), 30 supervised steps;
#                                                           half an hour on two cores
set -eu
cd "$(dirname "$0")/.."
# Generated tasks, which do not end.
unset RAO_LOG_DATA
rao=${RAO_LOG:-target/release/rao-log}
long=no
if [ "${1:-}" = --long ]; then
    long=yes
    shift
fi
if [ "$long" = yes ]; then
    small=${1:-3} large=${2:-480}
else
    small=${1:-150} large=${2:-1500}
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

field() { sed -n "s/.*\"$1\": *\([0-9.]*\).*/\1/p" | head -n 1; }
# The sum of a field over lines.
sum() { sed -n "s/.*\"$1\": *\([0-9.]*\).*/\1/p" | awk '{ sum += $1 } END { print sum }'; }

if [ "$long" = yes ]; then
    # A model of 0.4M parameters that reads long contexts; what it learns is not the question.
    "$rao" record --log "$work/texts" --policy oracle --tokenizer bytes --preset hard --tasks 20 --group 1 --seed 9 >/dev/null
    "$rao" init "$work/model" --log "$work/texts" --from latest --vocab 640 --token-bytes 96 \
        --hidden 128 --layers 2 --heads 4 --kv-heads 2 --ffn 344 --seed 1 >/dev/null
fi

for tasks in "$small" "$large"; do
    log=$work/log-$tasks
    if [ "$long" = yes ]; then
        "$rao" record --log "$log" --policy oracle --tokenizer "$work/model" --preset hard --tasks "$tasks" --group 12 --seed 1 >/dev/null
        how="--loss sft --steps 30 --model $work/model"
    else
        "$rao" record --log "$log" --policy mini --tasks "$tasks" --group 8 --seed 1 >/dev/null
        how=
    fi
    bytes=$("$rao" verify --log "$log" | sed -n 's/.*, \([0-9]*\) bytes in.*/\1/p')
    # shellcheck disable=SC2086
    "$rao" train latest --log "$log" --out "$work/out-$tasks" --threads 1 $how --json >"$work/trained"
    peak=$(field peak_bytes <"$work/trained")
    distinct=$(sum model_tokens <"$work/out-$tasks/metrics.jsonl")
    summed=$(sum summed_tokens <"$work/out-$tasks/metrics.jsonl")
    seconds=$(sum cpu_seconds <"$work/out-$tasks/timings.jsonl")
    echo "$tasks tasks: log $((bytes / 1000000)) MB, peak $((peak / 1048576)) MiB, $distinct distinct of $summed tokens," \
        "$seconds CPU s, $(awk "BEGIN { printf \"%.1f\", 1e6 * $seconds / $distinct }") CPU us a distinct token"
    eval "peak_$tasks=$peak"
done
eval "first=\$peak_$small second=\$peak_$large"
awk "BEGIN { printf \"peak memory, large log against small: %.3f\n\", $second / $first }"
