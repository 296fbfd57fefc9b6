#!/bin/sh
# The decoder and the trainer beside PyTorch, on the same processor, in the same run. Prints ratios (ours / PyTorch's).
#
#   benches/torch/run.sh [passes] [train] [smol] [decode]      (default: passes train)
#
# `decode` needs MODEL, a folder or a GGUF file of SmolLM2-135M (scripts/fetch-models.sh); with GGUF, its Q4_1 file, llama.cpp is
# run beside it, where PYTHON has xllamacpp.
#
# PyTorch goes into a virtual environment in target-torch/, which git ignores. PYTHON names another interpreter with torch,
# numpy and safetensors; RAO_LOG, PASSES and DECODE name built programs, so that nothing is built.
set -eu
cd "$(dirname "$0")/../.."
work=target-torch
mkdir -p "$work"
if [ -z "${PYTHON:-}" ]; then
    PYTHON=$work/venv/bin/python
    if [ ! -x "$PYTHON" ]; then
        python3 -m venv "$work/venv"
        # The wheel of the index needs its libraries for graphics processors to be there, used or not: about 3 GB.
        "$work/venv/bin/pip" install --quiet torch numpy safetensors
    fi
fi
if [ -z "${PASSES:-}" ] || [ -z "${RAO_LOG:-}" ] || [ -z "${DECODE:-}" ]; then
    cargo build --release --ignore-rust-version --bin rao-log
    cargo build --release --ignore-rust-version -p rao-policy --example passes --example decode
fi
PASSES=${PASSES:-target/release/examples/passes} DECODE=${DECODE:-target/release/examples/decode} \
    RAO_LOG=${RAO_LOG:-target/release/rao-log} \
    exec "$PYTHON" benches/torch/compare.py "$work" "$@"
