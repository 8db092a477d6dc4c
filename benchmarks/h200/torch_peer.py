"""PyTorch on the same shape, bf16 by autocast, torch.compile, fused AdamW: a lean Llama of our own, or transformers'.

Run:  python benchmarks/h200/torch_peer.py lean|transformers SHAPE ROWS      (train.py does)
Out:  {"tokens_per_second", "gigabytes"}: the median of steps 20 to 60, as ours, for a warm card has a lower clock;
      on one batch, without loader, clipping and schedule.
"""

import json
import sys
import time
from typing import Any

import torch
from shapes import FIRST, LAST, SHAPES, Shape
from torch import Tensor, nn
from torch.nn import functional as F


class Norm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], self.weight.to(x.dtype), 1e-5)


class Layer(nn.Module):
    """Queries, keys and values of one product, gate and up of another."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.norm_attention, self.norm_mlp = Norm(shape.width), Norm(shape.width)
        self.into_heads = nn.Linear(shape.width, 3 * shape.width, bias=False)
        self.out = nn.Linear(shape.width, shape.width, bias=False)
        self.into_mlp = nn.Linear(shape.width, 2 * shape.mlp, bias=False)
        self.down = nn.Linear(shape.mlp, shape.width, bias=False)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        rows, length, width = x.shape

        def by_head(array: Tensor) -> Tensor:
            return array.view(rows, length, self.heads, -1).transpose(1, 2)

        def turned(array: Tensor) -> Tensor:
            first, second = array.chunk(2, -1)
            return torch.cat([first * cosine - second * sine, second * cosine + first * sine], -1)

        q, k, v = (by_head(array) for array in self.into_heads(self.norm_attention(x)).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(turned(q), turned(k), v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(rows, length, width))
        gate, up = self.into_mlp(self.norm_mlp(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


class Lean(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embed = nn.Embedding(shape.vocabulary, shape.width)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = Norm(shape.width)
        self.head = nn.Linear(shape.width, shape.vocabulary, bias=False)
        size = shape.width // shape.heads
        angles = torch.arange(shape.length)[:, None] / 500_000 ** (torch.arange(0, size, 2) / size)
        self.register_buffer("cosine", angles.cos().bfloat16(), persistent=False)
        self.register_buffer("sine", angles.sin().bfloat16(), persistent=False)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        x = self.embed(ids).bfloat16()
        for layer in self.layers:
            x = layer(x, self.cosine, self.sine)
        logits = self.head(self.norm(x)).float()
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))


def transformers_model(shape: Shape) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=shape.vocabulary,
            hidden_size=shape.width,
            intermediate_size=shape.mlp,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.heads,
            max_position_embeddings=shape.length,
            use_cache=False,
            attn_implementation="sdpa",
        )
    )


def main() -> None:
    kind, name, rows = sys.argv[1], sys.argv[2], int(sys.argv[3])
    shape = SHAPES[name]
    torch.set_float32_matmul_precision("high")
    model: Any = (Lean(shape) if kind == "lean" else transformers_model(shape)).to("cuda")
    compiled = torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    ids = torch.randint(0, shape.vocabulary, (rows, shape.length + 1), device="cuda")
    before, after = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()

    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            loss = compiled(before, after) if kind == "lean" else compiled(input_ids=before, labels=before).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    seconds = []
    for _ in range(LAST):
        torch.cuda.synchronize()
        began = time.perf_counter()
        step()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    median = sorted(seconds[FIRST:])[(LAST - FIRST) // 2]
    gigabytes = torch.cuda.max_memory_allocated() / 1e9
    print(json.dumps({"tokens_per_second": rows * shape.length / median, "gigabytes": gigabytes}))


if __name__ == "__main__":
    main()
