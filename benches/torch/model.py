"""A Llama / Qwen3 decoder in plain PyTorch, as one would write it for speed: fused attention, RMS norm and SwiGLU from torch."""

import json
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

SHAPES = {  # layers, width, heads, kv heads, ffn, vocabulary; spec of the shapes: head width = width / heads, tied embedding
    "micro": (2, 128, 4, 2, 344, 256),
    "tiny": (4, 256, 4, 2, 688, 1024),
    "smol": (30, 576, 9, 3, 1536, 49152),
}


class Block(nn.Module):
    def __init__(self, d, heads, kv, dim, f, eps, qk_norm):
        super().__init__()
        self.heads, self.kv, self.dim, self.eps = heads, kv, dim, eps
        self.q = nn.Linear(d, heads * dim, bias=False)
        self.k = nn.Linear(d, kv * dim, bias=False)
        self.v = nn.Linear(d, kv * dim, bias=False)
        self.o = nn.Linear(heads * dim, d, bias=False)
        self.gate = nn.Linear(d, f, bias=False)
        self.up = nn.Linear(d, f, bias=False)
        self.down = nn.Linear(f, d, bias=False)
        self.norm1, self.norm2 = nn.Parameter(torch.ones(d)), nn.Parameter(torch.ones(d))
        self.q_norm = nn.Parameter(torch.ones(dim)) if qk_norm else None
        self.k_norm = nn.Parameter(torch.ones(dim)) if qk_norm else None

    def forward(self, x, cos, sin):
        b, t, _ = x.shape
        h = F.rms_norm(x, x.shape[-1:], self.norm1, self.eps)
        q = self.q(h).view(b, t, self.heads, self.dim)
        k = self.k(h).view(b, t, self.kv, self.dim)
        v = self.v(h).view(b, t, self.kv, self.dim).transpose(1, 2)
        if self.q_norm is not None:
            q = F.rms_norm(q, (self.dim,), self.q_norm, self.eps)
            k = F.rms_norm(k, (self.dim,), self.k_norm, self.eps)
        q, k = rotate(q.transpose(1, 2), cos, sin), rotate(k.transpose(1, 2), cos, sin)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o(y.transpose(1, 2).reshape(b, t, -1))
        h = F.rms_norm(x, x.shape[-1:], self.norm2, self.eps)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class Decoder(nn.Module):
    def __init__(self, layers, d, heads, kv, f, vocabulary, dim=None, eps=1e-5, theta=10000.0, qk_norm=False):
        super().__init__()
        dim = dim or d // heads
        self.dim, self.theta, self.eps = dim, theta, eps
        self.embed = nn.Embedding(vocabulary, d)
        nn.init.normal_(self.embed.weight, std=0.02)
        self.blocks = nn.ModuleList(Block(d, heads, kv, dim, f, eps, qk_norm) for _ in range(layers))
        self.norm = nn.Parameter(torch.ones(d))
        self.head = None

    def forward(self, ids):
        """Log-probabilities of ids[:, 1:]."""
        t = ids.shape[1]
        frequency = self.theta ** (-torch.arange(0, self.dim, 2, dtype=torch.float32) / self.dim)
        angle = torch.arange(t, dtype=torch.float32)[:, None] * frequency
        cos, sin = angle.cos(), angle.sin()
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x, cos, sin)
        x = F.rms_norm(x[:, :-1], x.shape[-1:], self.norm, self.eps)
        logits = x @ (self.embed.weight if self.head is None else self.head).T
        return -F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none").view(ids.shape[0], t - 1)


def load(folder):
    """A decoder from a Hugging Face folder."""
    from safetensors.torch import load_file

    c = json.loads((Path(folder) / "config.json").read_text())
    w = load_file(Path(folder) / "model.safetensors")
    model = Decoder(
        c["num_hidden_layers"], c["hidden_size"], c["num_attention_heads"], c["num_key_value_heads"],
        c["intermediate_size"], c["vocab_size"], c.get("head_dim"), c["rms_norm_eps"], c["rope_theta"],
        c["model_type"] == "qwen3",
    )
    names = {"q": "self_attn.q_proj", "k": "self_attn.k_proj", "v": "self_attn.v_proj", "o": "self_attn.o_proj",
             "gate": "mlp.gate_proj", "up": "mlp.up_proj", "down": "mlp.down_proj"}
    with torch.no_grad():
        model.embed.weight.copy_(w["model.embed_tokens.weight"])
        model.norm.copy_(w["model.norm.weight"])
        if "lm_head.weight" in w:
            model.head = nn.Parameter(w["lm_head.weight"].clone())
        for i, block in enumerate(model.blocks):
            at = f"model.layers.{i}."
            for short, name in names.items():
                getattr(block, short).weight.copy_(w[f"{at}{name}.weight"])
            block.norm1.copy_(w[f"{at}input_layernorm.weight"])
            block.norm2.copy_(w[f"{at}post_attention_layernorm.weight"])
            if block.q_norm is not None:
                block.q_norm.copy_(w[f"{at}self_attn.q_norm.weight"])
                block.k_norm.copy_(w[f"{at}self_attn.k_norm.weight"])
    return model
