#!/bin/sh
# Peak memory and speed of `train` over a small log and a large one: memory must not follow the log, time must follow the
# distinct tokens.
#
#   scripts/train-memory.sh [TASKS_SMALL] [TASKS_LARGE]     `mini`'s own rollouts, 8 of a task (default 150 and 1500 tasks:
#                                                           about 10 and 100 MB), one pass over all of them
#   scripts/train-memory.sh --long [SMALL] [LARGE]          the oracle's rollouts of hard tasks, one of each task, so that no two
#                                                           are alike (default 42 and 10000 tasks: about 8 MB and 2 GB), 12
#                                                           supervised steps; a quarter of an hour on two quiet cores, 6 GB
#
# The long form trains on each log twice, as it was recorded and sealed. Contexts end at 2048 tokens and a micro-batch holds as
# many, so that a step has the same shapes whatever it draws: the two logs differ in the number of their rollouts alone.
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
    small=${1:-42} large=${2:-10000}
else
    small=${1:-150} large=${2:-1500}
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

field() { sed -n "s/.*\"$1\": *\"*\([0-9a-f.]*\).*/\1/p" | head -n 1; }
# The sum of a field over lines.
sum() { sed -n "s/.*\"$1\": *\([0-9.]*\).*/\1/p" | awk '{ sum += $1 } END { print sum }'; }

# train TASKS FORM: trains on the run of the log, tells what it took, and keeps the peak in peak_TASKS_FORM.
train() {
    rm -rf "$work/out"
    # shellcheck disable=SC2086
    "$rao" train "$run" --log "$log" --out "$work/out" --threads 1 $how --json >"$work/trained"
    peak=$(field peak_bytes <"$work/trained")
    distinct=$(sum model_tokens <"$work/out/metrics.jsonl")
    summed=$(sum summed_tokens <"$work/out/metrics.jsonl")
    seconds=$(sum cpu_seconds <"$work/out/timings.jsonl")
    echo "$1 tasks, $2: log $((bytes / 1000000)) MB, peak $((peak / 1048576)) MiB, $distinct distinct of $summed tokens," \
        "$seconds CPU s, $(awk "BEGIN { printf \"%.1f\", 1e6 * $seconds / $distinct }") CPU us a distinct token"
    eval "peak_$1_$2=$peak"
}

compare() {
    eval "first=\$peak_${small}_$1 second=\$peak_${large}_$1"
    awk "BEGIN { printf \"peak memory, large log against small, $1: %.3f\n\", $second / $first }"
}

if [ "$long" = yes ]; then
    # A model of 0.4M parameters that reads long contexts; what it learns is not the question.
    "$rao" record --log "$work/texts" --policy oracle --tokenizer bytes --preset hard --tasks 20 --group 1 --seed 9 >/dev/null
    "$rao" init "$work/model" --log "$work/texts" --from latest --vocab 640 --token-bytes 96 \
        --hidden 128 --layers 2 --heads 4 --kv-heads 2 --ffn 344 --seed 1 >/dev/null
fi

for tasks in "$small" "$large"; do
    log=$work/log-$tasks
    if [ "$long" = yes ]; then
        "$rao" record --log "$log" --policy oracle --tokenizer "$work/model" --preset hard --worlds fresh --tasks "$tasks" \
            --group 1 --context 2048 --seed 1 --durability end --json >"$work/recorded"
        how="--loss sft --steps 12 --micro-tokens 2048 --model $work/model"
    else
        "$rao" record --log "$log" --policy mini --tasks "$tasks" --group 8 --seed 1 --json >"$work/recorded"
        how=
    fi
    run=$(tail -n 1 "$work/recorded" | field run)
    bytes=$("$rao" verify --log "$log" | sed -n 's/.*, \([0-9]*\) bytes in.*/\1/p')
    train "$tasks" live
    if [ "$long" = yes ]; then
        "$rao" seal "$run" --log "$log" >/dev/null
        train "$tasks" sealed
        rm -rf "$log"
    fi
done
compare live
[ "$long" = no ] || compare sealed
