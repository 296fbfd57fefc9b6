#!/usr/bin/env bash
# Kills a recording at random moments, resumes it, and compares the content digest with an uninterrupted one's.
#
#   scripts/crash-sweep.sh [ROUNDS] [POLICY]     100 rounds of the noisy policy; POLICY may be oracle, noisy or mini
#
# SEED=N repeats the same moments, as far as the machine does; TASKS=N makes the scripted runs shorter or longer. The program is RAO (target/release/rao-log).
set -euo pipefail
cd "$(dirname "$0")/.."

rounds=${1:-100}
policy=${2:-noisy}
rao=$(realpath "${RAO:-target/release/rao-log}")
RANDOM=${SEED:-1}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

flags=(record --policy "$policy")
again=()
if [ "$policy" = mini ]; then
    flags+=(--tasks 3 --group 2 --max-tokens 64)
else
    flags+=(--tokenizer bytes --tasks "${TASKS:-60}" --group 4 --width 4)
    again=(--tokenizer bytes)
fi

digest() { sed -n 's/.*"content_digest":"\([0-9a-f]*\)".*/\1/p'; }
now() { date +%s%N; }

begin=$(now)
whole=$("$rao" "${flags[@]}" --log whole --json | digest)
took=$((($(now) - begin) / 1000))
echo "uninterrupted: $whole in $((took / 1000)) ms"

killed=0
for round in $(seq "$rounds"); do
    log="log$round"
    # A run can be interrupted more than once; each attempt may also be over before it is killed.
    for attempt in 1 2 3; do
        if [ "$attempt" = 1 ]; then
            "$rao" "${flags[@]}" --log "$log" >/dev/null 2>&1 &
        else
            "$rao" record --resume latest "${again[@]}" --log "$log" >/dev/null 2>&1 &
        fi
        child=$!
        wait_us=$(((RANDOM * 32768 + RANDOM) % (took + 1)))
        sleep "$(printf '%d.%06d' $((wait_us / 1000000)) $((wait_us % 1000000)))"
        if kill -9 "$child" 2>/dev/null; then killed=$((killed + 1)); fi
        wait "$child" 2>/dev/null || true
        # Killed before its manifest was durable: there is nothing to resume, and the first attempt is repeated.
        "$rao" show latest --log "$log" >/dev/null 2>&1 || { rm -rf "$log"; break; }
    done
    if [ -d "$log" ]; then
        resumed=$("$rao" record --resume latest "${again[@]}" --log "$log" --json 2>"$log.err" | digest) || true
    else
        resumed=$("$rao" "${flags[@]}" --log "$log" --json | digest)
    fi
    if [ "$resumed" != "$whole" ]; then
        echo "round $round: resumed to '$resumed', not $whole" >&2
        cat "$log.err" >&2 2>/dev/null || true
        trap - EXIT
        echo "the log is kept in $work/$log" >&2
        exit 1
    fi
    "$rao" verify --log "$log" >/dev/null
    rm -rf "$log" "$log.err"
done
echo "$rounds rounds of $policy, killed $killed times: every digest is the uninterrupted one's"
