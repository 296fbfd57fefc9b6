#!/usr/bin/env bash
# Kills a recording with -9 at random moments, again and again on one growing log, and compares the log with what the
# recording said was acknowledged: nothing acknowledged is lost, no stream has a hole, and every opening works.
#
#   scripts/kill-sweep.sh [ROUNDS] [DURABILITY]     200 rounds, durable
#
# SEED=N repeats the same moments, as far as the machine does; TASKS=N makes the recordings shorter or longer. The program
# is RAO (target/release/rao-log).
set -euo pipefail
cd "$(dirname "$0")/.."

rounds=${1:-200}
mode=${2:-durable}
rao=$(realpath "${RAO:-target/release/rao-log}")
RANDOM=${SEED:-1}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

flags=(record --policy noisy --tokenizer bytes --tasks "${TASKS:-40}" --group 4 --width 4 --durability "$mode")
fail() {
    trap - EXIT
    echo "round $round: $*; the log is kept in $work/log" >&2
    exit 1
}

# Every line of `tail --headers` is an event: date, time, STREAM#NUMBER, and more. Every line of the recording's trace that
# says so acknowledges a stream's events up to a number. A trace's last line may be cut by the kill.
compare() {
    awk '
        FNR == NR {
            if (/ acknowledged stream=[^ ]+ events=[0-9]+$/) {
                stream = $(NF - 1); sub(/^stream=/, "", stream)
                events = $NF; sub(/^events=/, "", events)
                if (events + 0 > acknowledged[stream] + 0) acknowledged[stream] = events + 0
            }
            next
        }
        {
            split($3, place, "#")
            if (place[2] != found[place[1]] + 0) { holes++; print "hole before " $3 }
            found[place[1]]++
        }
        END {
            for (stream in acknowledged) {
                total += acknowledged[stream]
                missing = acknowledged[stream] - found[stream]
                if (missing > 0) { lost += missing; print stream " lost " missing " of " acknowledged[stream] }
            }
            print total + 0, lost + 0, holes + 0
        }' "$1" "$2"
}

now() { date +%s%N; }
round=0
begin=$(now)
"$rao" "${flags[@]}" --log whole >/dev/null
took=$((($(now) - begin) / 1000))
rm -rf whole

killed=0 acknowledged=0
: >all.acks
for round in $(seq "$rounds"); do
    NO_COLOR=1 RAO_LOG_TRACE=rao_store::commit=trace "$rao" "${flags[@]}" --seed "$round" --log log >out 2>acks &
    child=$!
    wait_us=$(((RANDOM * 32768 + RANDOM) % (took + 1)))
    sleep "$(printf '%d.%06d' $((wait_us / 1000000)) $((wait_us % 1000000)))"
    if kill -9 "$child" 2>/dev/null; then killed=$((killed + 1)); fi
    status=0
    wait "$child" 2>/dev/null || status=$?
    [ "$status" = 0 ] || [ "$status" = 137 ] || fail "the recording ended by itself with code $status: $(tail -3 acks)"
    [ -d log/journal ] || continue
    cat acks >>all.acks
    "$rao" verify --log log >verified 2>&1 || fail "the log does not verify: $(tail -5 verified)"
    run=$(sed -n '/ acknowledged stream=/{s/.* acknowledged stream=\([0-9a-f]\{32\}\).*/\1/p;q}' acks)
    [ -n "$run" ] || continue
    "$rao" tail "$run" --headers --log log >headers 2>&1 || fail "the run cannot be read: $(tail -1 headers)"
    result=$(compare acks headers | tail -1)
    read -r total lost holes <<<"$result"
    [ "$lost" = 0 ] && [ "$holes" = 0 ] || fail "$lost of $total acknowledged events lost, $holes holes"
    acknowledged=$((acknowledged + total))
done

# What an earlier round was acknowledged is still there after all later ones.
"$rao" tail --headers --log log >headers
read -r total lost holes <<<"$(compare all.acks headers | tail -1)"
[ "$lost" = 0 ] && [ "$holes" = 0 ] || fail "in the end $lost of $total acknowledged events are lost, $holes holes"
"$rao" doctor --log log >doctored || fail "doctor finds something: $(tail -3 doctored)"
echo "$rounds rounds, killed $killed times, $total events acknowledged: 0 lost, 0 holes, 0 failed openings"
