#!/usr/bin/env bash
# Fuzzes every decoder of outside bytes for SECONDS each (default 300), from the seeds and from everything found before.
# Needs a nightly compiler and cargo-fuzz. An input that fails is kept in fuzz/found, where the suite runs it for ever.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds="${1:-300}"
status=0
for target in frame archive journal; do
    mkdir -p "fuzz/corpus/$target" "fuzz/found/$target"
    if ! cargo +nightly fuzz run --fuzz-dir fuzz "$target" "fuzz/corpus/$target" "fuzz/seeds/$target" "fuzz/found/$target" \
        -- -max_total_time="$seconds" -max_len=16384 -rss_limit_mb=2048 -print_final_stats=1; then
        status=1
        cp fuzz/artifacts/"$target"/* "fuzz/found/$target/" 2>/dev/null || true
    fi
done
exit "$status"
