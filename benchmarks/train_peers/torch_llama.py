"""A lean PyTorch training loop of the benchmark's Llama on the CPU, set up as fast as it goes there.

Run:  .venv/bin/python benchmarks/train_peers/torch_llama.py ROWS.npy [--mode compile] [--loss full] [--help]
In:   token ids [rows, 257] (rows.py). Batches are rows in their order. f32, AdamW, clipping, constant learning rate.
Out:  last a line of JSON: tokens_per_second (of the steps after warm-up, by the wall clock), tokens_per_cpu_second (by
      the CPU time of all threads), seconds (of each step), losses (of all steps), parameters, torch (its version).
B batch, S sequence, R rows (tokens) at once, D width, N heads, H head size, F MLP width, V vocabulary.
"""

import argparse
import ctypes
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

D, F_WIDTH, LAYERS, N, V = 256, 768, 4, 4, 32_000
H = D // N
EPSILON, THETA, STD = 1e-5, 10_000.0, 0.02
M_MMAP_THRESHOLD, M_TRIM_THRESHOLD = -3, -1  # of glibc's malloc


def main() -> None:
    flags = parse_flags()
    keep_memory()
    torch.set_num_threads(flags.threads)
    torch.manual_seed(0)
    rows = torch.from_numpy(np.load(flags.rows).astype(np.int64))
    batches = [rows[start : start + flags.batch] for start in range(0, len(rows) - flags.batch + 1, flags.batch)]
    wanted = flags.warm_up + flags.steps
    if len(batches) < wanted:
        raise SystemExit(f"torch_llama.py: {flags.rows} holds {len(batches)} batches, and {wanted} are needed.")
    model = Llama(rows.shape[1] - 1)
    figures = train(model, batches[:wanted], flags)
    count = sum(parameter.numel() for parameter in model.parameters())
    print(json.dumps({**figures, "parameters": count, "torch": torch.__version__}))


def parse_flags() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("rows", type=Path)
    parser.add_argument("--mode", choices=("eager", "compile"), default="compile")
    parser.add_argument("--loss", choices=LOSSES, default="chunked")
    parser.add_argument("--chunk", type=int, default=512, help="rows of logits at once (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=20, help="that are timed (default: %(default)s)")
    parser.add_argument("--warm_up", type=int, default=3, help="steps before them (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--learning_rate", type=float, default=6e-4)
    return parser.parse_args()


def keep_memory() -> None:
    """Large arrays come from memory that is kept, and not each time anew from the system, page fault by page fault."""
    libc = ctypes.CDLL("libc.so.6")
    if not (libc.mallopt(M_MMAP_THRESHOLD, 1 << 30) and libc.mallopt(M_TRIM_THRESHOLD, (1 << 31) - 1)):
        raise OSError("glibc refused the thresholds of malloc")


# Training


def train(model: "Llama", batches: list[Tensor], flags: argparse.Namespace) -> dict[str, Any]:
    hidden = torch.compile(model) if flags.mode == "compile" else model
    loss_of = LOSSES[flags.loss]
    if flags.mode == "compile" and flags.loss == "full":
        loss_of = torch.compile(loss_of)
    optimizer = optimizer_of(model, flags.learning_rate)
    parameters = list(model.parameters())
    losses, walls, cpus = [], [], []
    for batch in batches:
        wall, cpu = time.perf_counter(), time.process_time()
        x_RD = hidden(batch[:, :-1]).view(-1, D)
        loss = loss_of(x_RD, model.head_VD, batch[:, 1:].reshape(-1), flags.chunk)
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
    tokens = flags.steps * batches[0][:, 1:].numel()
    return {
        "tokens_per_second": tokens / sum(walls[flags.warm_up :]),
        "tokens_per_cpu_second": tokens / sum(cpus[flags.warm_up :]),
        "seconds": [round(wall, 4) for wall in walls],
        "losses": losses,
    }


def optimizer_of(model: "Llama", learning_rate: float) -> torch.optim.Optimizer:
    decayed = [one for name, one in model.named_parameters() if one.ndim > 1 and name != "embed_VD"]
    others = [one for name, one in model.named_parameters() if one.ndim < 2 or name == "embed_VD"]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=learning_rate, betas=(0.9, 0.95), eps=1e-8, fused=True)


# The loss


def full_loss(x_RD: Tensor, head_VD: Tensor, targets_R: Tensor, chunk: int) -> Tensor:
    """All logits at once."""
    return F.cross_entropy(F.linear(x_RD, head_VD), targets_R)


class ChunkedLoss(torch.autograd.Function):
    """Logits of some rows at a time, in one buffer. The gradients are made of them while they are there."""

    @staticmethod
    def forward(context: Any, x_RD: Tensor, head_VD: Tensor, targets_R: Tensor, chunk: int) -> Tensor:
        share = 1 / len(x_RD)
        d_x_RD, d_head_VD = torch.empty_like(x_RD), torch.empty_like(head_VD)
        buffer, total = torch.empty(chunk, len(head_VD)), torch.zeros(())
        minus_one = torch.full((chunk, 1), -1.0)
        for start in range(0, len(x_RD), chunk):
            x, targets = x_RD[start : start + chunk], targets_R[start : start + chunk, None]
            logits = torch.mm(x, head_VD.T, out=buffer[: len(x)])
            likely = torch.softmax(logits, 1, out=logits)
            total -= likely.gather(1, targets).log_().sum()
            likely.scatter_add_(1, targets, minus_one[: len(x)])
            torch.mm(likely, head_VD, out=d_x_RD[start : start + chunk])
            d_head_VD.addmm_(likely.T, x, beta=0 if start == 0 else 1, alpha=share)
        d_x_RD *= share
        context.save_for_backward(d_x_RD, d_head_VD)
        return total * share

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        """The loss is what is differentiated, so that its own gradient is 1."""
        d_x_RD, d_head_VD = context.saved_tensors
        return d_x_RD, d_head_VD, None, None


LOSSES = {"full": full_loss, "chunked": ChunkedLoss.apply}


# The model


class Block(nn.Module):
    """One layer; queries, keys and values are one product, and so are gate and up."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_attention_D = nn.Parameter(torch.ones(D))
        self.norm_mlp_D = nn.Parameter(torch.ones(D))
        self.w_qkv, self.w_out = weight(3 * D, D), weight(D, D)
        self.w_gate_up, self.w_down = weight(2 * F_WIDTH, D), weight(D, F_WIDTH)

    def forward(self, x_BSD: Tensor, cos_SH: Tensor, sin_SH: Tensor) -> Tensor:
        batch, length, _ = x_BSD.shape
        qkv = F.linear(F.rms_norm(x_BSD, (D,), self.norm_attention_D, EPSILON), self.w_qkv)
        q, k, v = qkv.view(batch, length, 3, N, H).permute(2, 0, 3, 1, 4)  # each B N S H
        q, k = rotated(q, cos_SH, sin_SH), rotated(k, cos_SH, sin_SH)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x_BSD = x_BSD + F.linear(mixed.transpose(1, 2).reshape(batch, length, D), self.w_out)
        normed = F.rms_norm(x_BSD, (D,), self.norm_mlp_D, EPSILON)
        gate, up = F.linear(normed, self.w_gate_up).chunk(2, dim=-1)
        return x_BSD + F.linear(F.silu(gate) * up, self.w_down)


class Llama(nn.Module):
    """Token ids to hidden states, normalised."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.embed_VD, self.head_VD = weight(V, D), weight(V, D)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm_D = nn.Parameter(torch.ones(D))
        angles = torch.outer(torch.arange(length), THETA ** (-torch.arange(0, H, 2) / H)).repeat(1, 2)
        self.register_buffer("cos_SH", angles.cos())
        self.register_buffer("sin_SH", angles.sin())

    def forward(self, ids_BS: Tensor) -> Tensor:
        x_BSD = F.embedding(ids_BS, self.embed_VD)
        for block in self.blocks:
            x_BSD = block(x_BSD, self.cos_SH, self.sin_SH)
        return F.rms_norm(x_BSD, (D,), self.norm_D, EPSILON)


def weight(out: int, into: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(out, into) * STD)


def rotated(x_BNSH: Tensor, cos_SH: Tensor, sin_SH: Tensor) -> Tensor:
    left, right = x_BNSH.chunk(2, dim=-1)
    return x_BNSH * cos_SH + torch.cat((-right, left), dim=-1) * sin_SH


if __name__ == "__main__":
    main()
