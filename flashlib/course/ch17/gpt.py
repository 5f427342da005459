"""A character GPT on one page, in which attention is an argument.

Taught in notebook 17. Rotary positions, so that its length has no limit; no dropout; one matrix reads
characters and writes them.
"""

import functools
import math

import torch
from torch import nn
from torch.nn import functional as F

from flashlib.course.ch17.text import batches
from flashlib.kernels import KVCache, flash_attention


def one_thread(fn):
    """Let one thread of the CPU do it: so small a model gains nothing by more; sums keep one order."""
    @functools.wraps(fn)
    def run(*args, **options):
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return fn(*args, **options)
        finally:
            torch.set_num_threads(threads)
    return run


def standard(q, k, v):
    """Attention as three operations: S and P are N × N tensors, and backward keeps them."""
    S = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    hidden = torch.ones(S.shape[-2:], device=S.device, dtype=torch.bool).triu(1)
    return torch.softmax(S.masked_fill(hidden, float("-inf")), -1) @ v


def sdpa(q, k, v):
    """Attention as torch has it: SDPA, which picks an implementation."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def ours(q, k, v):
    """The course's op."""
    return flash_attention(q, k, v, causal=True)


def left_out(q, k, v):
    """No attention at all: what a step costs without it."""
    return v


def turned(x, at):
    """Turn each pair of columns (i, i + D/2) of x (B, N, H, D) by an angle that grows with `at`."""
    half = x.shape[-1] // 2
    rate = torch.exp(-math.log(1e4) / half * torch.arange(half, device=x.device))
    angle = (at[:, None] * rate)[:, None]                   # (N, 1, D/2)
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * cos - b * sin, a * sin + b * cos), -1)


class Block(nn.Module):
    """Attention, then two matrices with a squared ReLU between them, each added to x."""

    def __init__(self, C, H):
        super().__init__()
        self.H = H
        self.qkv, self.out = nn.Linear(C, 3 * C, bias=False), nn.Linear(C, C, bias=False)
        self.up, self.down = nn.Linear(C, 4 * C, bias=False), nn.Linear(4 * C, C, bias=False)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.down.weight)

    def before(self, x, at):
        """Return q, k and v, (B, H, N, D) each."""
        q, k, v = self.qkv(F.rms_norm(x, x.shape[-1:])).unflatten(-1, (3, self.H, -1)).unbind(-3)
        return tuple(y.transpose(1, 2) for y in (turned(q, at), turned(k, at), v))

    def after(self, x, o):
        """Return x with what attention found, and what the two matrices make of it."""
        x = x + self.out(o.transpose(1, 2).flatten(2))
        return x + self.down(F.relu(self.up(F.rms_norm(x, x.shape[-1:]))).square())

    def forward(self, x, at, attention):
        """Return x after one layer; `attention` is a function of q, k and v."""
        return self.after(x, attention(*self.before(x, at)))


class GPT(nn.Module):
    """A causal language model of `kinds` characters, L layers, C columns and H heads.

    Args:
        attention: a function of q, k and v, (B, H, N, D) each, that is causal.
    """

    def __init__(self, kinds, L, C, H, attention):
        super().__init__()
        self.attention = attention
        self.sizes = H, C // H
        self.embed = nn.Embedding(kinds, C)
        nn.init.normal_(self.embed.weight, std=0.02)
        self.blocks = nn.ModuleList(Block(C, H) for _ in range(L))

    def forward(self, tokens, at=None, caches=None):
        """Return logits (B, N, kinds) of tokens (B, N).

        Args:
            at: (N,) the places of the tokens, by default 0 … N − 1.
            caches: one `KVCache` a layer: keys of earlier calls, to which these are added.
        """
        if at is None:
            at = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.embed(tokens)
        for n, block in enumerate(self.blocks):
            x = block(x, at, caches[n].step if caches else self.attention)
        return F.rms_norm(x, x.shape[-1:]) @ self.embed.weight.T

    def loss(self, tokens):
        """Return the mean surprise, in nats, at each next character of tokens (B, N + 1)."""
        return F.cross_entropy(self(tokens[:, :-1]).flatten(0, 1).float(), tokens[:, 1:].flatten())

    def caches(self, B, room):
        """Return an empty cache for each layer."""
        weight = self.embed.weight
        return [KVCache(B, self.sizes[0], room, self.sizes[1], dtype=weight.dtype, device=weight.device)
                for _ in self.blocks]

    @one_thread
    @torch.no_grad()
    def write(self, tokens, count, temperature=0.8):
        """Return tokens (B, N) with `count` more behind them, each drawn from the model's guess."""
        caches, new = self.caches(len(tokens), tokens.shape[1] + count), tokens
        for _ in range(count):
            first = tokens.shape[1] - new.shape[1]
            at = torch.arange(first, tokens.shape[1], device=tokens.device)
            likely = torch.softmax(self(new, at, caches)[:, -1].float() / temperature, -1)
            new = torch.multinomial(likely, 1)
            tokens = torch.cat((tokens, new), 1)
        return tokens


def compile_layers(model):
    """Compile both halves of every layer, all but attention, in place."""
    torch._dynamo.config.recompile_limit = 64
    for block in model.blocks:
        block.before = torch.compile(block.before, dynamic=False)
        block.after = torch.compile(block.after, dynamic=False)


@one_thread
def trained(attention, numbers, kinds, *, steps=60, L=4, C=128, H=4, N=128, B=4, seed=0):
    """Return a model that was trained on a text, as numbers, and its loss at each step."""
    torch.manual_seed(seed)
    model, drawn, losses = GPT(kinds, L, C, H, attention), batches(numbers, N, B, seed), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95))
    for _ in range(steps):
        loss = model.loss(torch.from_numpy(next(drawn)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return model, losses


def kept_bytes(attention, B, H, N, D):
    """Return the bytes that one call of an attention keeps for its backward."""
    held = {}

    def keep(x):
        held[x.untyped_storage().data_ptr()] = x.untyped_storage()
        return x

    q, k, v = (torch.randn(B, H, N, D, requires_grad=True) for _ in range(3))
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        attention(q, k, v)
    return sum(storage.nbytes() for storage in held.values())


def first_leak(model, tokens):
    """Return a (row, place) of tokens (N,) at which the model looks ahead, or None."""
    with torch.no_grad():
        right = model(tokens[None])[0]
        for at in range(len(tokens) - 1, 0, -1):
            other = tokens.clone()
            other[at] = (other[at] + 1) % model.embed.num_embeddings
            changed = (model(other[None])[0, :at] != right[:at]).any(-1)
            if changed.any():
                return int(changed.nonzero()[0]), at
    return None
