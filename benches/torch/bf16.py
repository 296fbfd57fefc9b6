"""A model folder with its weights rounded to bfloat16, the form in which most checkpoints are published.

    bf16.py FOLDER OUT
"""

import pathlib
import shutil
import sys

import torch
from safetensors.torch import load_file, save_file

folder, out = map(pathlib.Path, sys.argv[1:])
out.mkdir(parents=True, exist_ok=True)
for file in folder.iterdir():
    if file.suffix == ".safetensors":
        tensors = {name: tensor.to(torch.bfloat16) for name, tensor in load_file(file).items()}
        save_file(tensors, out / file.name)
    elif file.is_file():
        shutil.copy(file, out)
