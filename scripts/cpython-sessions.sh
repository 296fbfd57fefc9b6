#!/bin/sh
# The long form of the tests of CPython's session processes: thousands of short sessions that leave nothing behind, then the
# figures of docs/guide/python.md. About two minutes, after the build.
set -eu
cd "$(dirname "$0")/.."
exec cargo test --release --ignore-rust-version -p rao-engine --test repl_forks -- \
    --ignored --exact --nocapture --test-threads 1 thousands_of_short_sessions_leave_nothing_behind figures
