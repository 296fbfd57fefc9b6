"""The rivals' side of the decoding comparison. Prints JSON.

    decode.py torch MODEL ROWS SHARED TOKENS THREADS     PyTorch: one static cache of keys and values, one step for all rows; the
                                                         next token is the most probable one, which is less work than sampling
    decode.py llama GGUF ROWS SHARED TOKENS THREADS      llama.cpp through xllamacpp: its own server with as many slots as rows

MODEL is a Hugging Face folder or a shape of model.py with random weights, SHARED the tokens of context that the rows begin with, TOKENS those that each of them gets.
"""

import concurrent.futures
import json
import resource
import sys
import time


def torch_side(folder, rows, shared, tokens, threads):
    import torch
    import torch.nn.functional as F

    from model import SHAPES, Decoder, load, rotate

    torch.set_num_threads(threads)
    model = Decoder(*SHAPES[folder]) if folder in SHAPES else load(folder)
    first = model.blocks[0]
    heads, kv, dim, room = first.heads, first.kv, first.dim, shared + 8 + tokens
    frequency = model.theta ** (-torch.arange(0, dim, 2, dtype=torch.float32) / dim)
    angle = torch.arange(room, dtype=torch.float32)[:, None] * frequency
    cos, sin = angle.cos(), angle.sin()
    keys = [torch.zeros(rows, kv, room, dim) for _ in model.blocks]
    values = [torch.zeros(rows, kv, room, dim) for _ in model.blocks]
    # Weights as torch likes them best for few rows: one product for queries, keys and values, one for gate and up.
    qkv = [torch.cat([b.q.weight, b.k.weight, b.v.weight]).contiguous() for b in model.blocks]
    gate_up = [torch.cat([b.gate.weight, b.up.weight]).contiguous() for b in model.blocks]
    head = model.embed.weight if model.head is None else model.head

    def step(ids, at):
        """The most probable next tokens after ids [rows, n], which are at positions at..at + n."""
        n, to = ids.shape[1], at + ids.shape[1]
        c, s = cos[at:to], sin[at:to]
        x = model.embed(ids)
        for i, b in enumerate(model.blocks):
            h = F.rms_norm(x, x.shape[-1:], b.norm1, b.eps)
            q, k, v = F.linear(h, qkv[i]).split([heads * dim, kv * dim, kv * dim], -1)
            q = rotate(q.view(rows, n, heads, dim).transpose(1, 2), c, s)
            keys[i][:, :, at:to] = rotate(k.view(rows, n, kv, dim).transpose(1, 2), c, s)
            values[i][:, :, at:to] = v.view(rows, n, kv, dim).transpose(1, 2)
            y = F.scaled_dot_product_attention(q, keys[i][:, :, :to], values[i][:, :, :to], is_causal=n > 1, enable_gqa=True)
            x = x + b.o(y.transpose(1, 2).reshape(rows, n, -1))
            h = F.rms_norm(x, x.shape[-1:], b.norm2, b.eps)
            gate, up = F.linear(h, gate_up[i]).chunk(2, -1)
            x = x + b.down(F.silu(gate) * up)
        return (F.rms_norm(x[:, -1], x.shape[-1:], model.norm, model.eps) @ head.T).argmax(-1, keepdim=True)

    with torch.no_grad():
        context = torch.randint(head.shape[0], (rows, shared + 8))
        ids = step(context, 0)
        for at in range(2):
            step(ids, shared + 8)
        begin, cpu = time.perf_counter(), time.process_time()
        for at in range(tokens):
            ids = step(ids, shared + 8 + at)
        seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu
    return {"per_second": rows * tokens / seconds, "per_cpu_second": rows * tokens / cpu, "version": torch.__version__}


def llama_side(path, rows, shared, tokens, threads):
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = path
    params.n_parallel, params.n_ctx, params.n_gpu_layers = rows, rows * (shared + 8 + tokens + 8), 0
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    params.verbosity, params.warmup = -1, True
    server = xllamacpp.Server(params)

    def complete(row, count):
        # Ids of the middle of the vocabulary: contexts differ only at their end, as ours do.
        prompt = [1000 + 7 * i for i in range(shared)] + [3000 + 97 * row + i for i in range(8)]
        request = {"prompt": prompt, "n_predict": count, "temperature": 1.0, "ignore_eos": True, "cache_prompt": True}
        return server.handle_completions(request)

    with concurrent.futures.ThreadPoolExecutor(rows) as pool:
        list(pool.map(lambda row: complete(row, 1), range(rows)))
        begin, cpu = time.perf_counter(), time.process_time()
        done = list(pool.map(lambda row: complete(row, tokens), range(rows)))
        seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu
    count = 0
    for answer in done:
        usage = answer.get("usage", {}) if isinstance(answer, dict) else {}
        count += usage.get("completion_tokens") or answer.get("tokens_predicted") or tokens
    return {"per_second": count / seconds, "per_cpu_second": count / cpu, "tokens": count}


if __name__ == "__main__":
    side, model, *numbers = sys.argv[1:]
    out = (torch_side if side == "torch" else llama_side)(model, *map(int, numbers))
    out["peak_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print("\n" + json.dumps(out))
