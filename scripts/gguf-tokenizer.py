#!/usr/bin/env python3
"""Writes the tokenizer.json of a model in a GGUF file: byte-level BPE with the pre-tokenizer `smollm` or `gpt-2`.

    gguf-tokenizer.py MODEL.gguf TOKENIZER.json

Only the file's metadata is read. A vocabulary of another kind is refused.
"""

import json
import struct
import sys

SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
CONTROL = 3
# What is put before the split into words and spaces.
BEFORE = {
    "smollm": [{"type": "Digits", "individual_digits": True}],
    "gpt-2": [],
}


class Reader:
    def __init__(self, file):
        self.file = file

    def scalar(self, kind):
        layout = "<" + SCALARS[kind]
        return struct.unpack(layout, self.file.read(struct.calcsize(layout)))[0]

    def string(self):
        return self.file.read(self.scalar(10)).decode("utf-8")

    def value(self, kind):
        if kind == STRING:
            return self.string()
        if kind == ARRAY:
            item, count = self.scalar(4), self.scalar(10)
            return [self.value(item) for _ in range(count)]
        return self.scalar(kind)


def metadata(path):
    with open(path, "rb") as file:
        reader = Reader(file)
        if file.read(4) != b"GGUF":
            sys.exit(f"{path} is no GGUF file")
        reader.scalar(4)
        reader.scalar(10)
        count = reader.scalar(10)
        found = {}
        for _ in range(count):
            name = reader.string()
            found[name] = reader.value(reader.scalar(4))
        return found


def tokenizer(found):
    kind, pre = found.get("tokenizer.ggml.model"), found.get("tokenizer.ggml.pre", "gpt-2")
    if kind != "gpt2" or pre not in BEFORE:
        sys.exit(f"a vocabulary of kind {kind} with pre-tokenizer {pre} is not supported")
    tokens, kinds = found["tokenizer.ggml.tokens"], found["tokenizer.ggml.token_type"]
    merges = [merge.split(" ", 1) for merge in found["tokenizer.ggml.merges"]]
    added = [
        {"id": at, "content": token, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
         "special": True}
        for at, (token, kind) in enumerate(zip(tokens, kinds))
        if kind == CONTROL
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": BEFORE[pre] + [byte_level]},
        "post_processor": None, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": {token: at for at, token in enumerate(tokens)}, "merges": merges},
    }


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    with open(sys.argv[2], "w", encoding="utf-8") as out:
        json.dump(tokenizer(metadata(sys.argv[1])), out, ensure_ascii=False)
        out.write("\n")


if __name__ == "__main__":
    main()
