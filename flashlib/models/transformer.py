"""One Transformer layer, operator by operator: what each computes, and what it moves through HBM.

Every operator is a kernel of its own, as a framework runs it without fusion: it reads each input
once and writes its output once, which is the least that a kernel can do. `fuse` makes one kernel of
several. The vector FLOPs per element are, exponentials apart:

    LayerNorm 7 (and 4 a row)   RMSNorm 4 (and 3 a row)   bias 1   rotation 3   residual 1
    GELU 12 + 1 exp (the tanh form)   SwiGLU 4 + 1 exp

and those of the attention operators are those of `models.traffic.standard_attention`. Dropout,
embeddings and the backward pass are not modeled. Taught in notebook 01.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from flashlib.arguments import check_block, check_choice
from flashlib.machine.traffic import Moved, Traffic

ELEMENT_BYTES = {"float32": 4, "tf32": 4, "float16": 2, "bfloat16": 2, "float8": 1}
ATTENTION = ("S = QKᵀ", "softmax", "O = PV")


@dataclass(frozen=True)
class Shape:
    """The sizes of one Transformer layer.

    Args:
        d_model: width of the residual stream.  d: width of a head.
        heads, kv_heads: query heads, and heads of K and V (fewer with grouped queries).
        ffn: inner width of the feed-forward part.
        modern: RMSNorm, rotary positions, SwiGLU and no biases; else LayerNorm, GELU and biases.
        layers: how many such layers the model has.  source: where the sizes are published.
    """

    name: str
    d_model: int
    heads: int
    kv_heads: int
    d: int
    ffn: int
    modern: bool
    layers: int
    source: str

    def __post_init__(self):
        for name in ("d_model", "heads", "kv_heads", "d", "ffn", "layers"):
            check_block(name, getattr(self, name))
        if self.heads % self.kv_heads:
            raise ValueError(f"heads: expected a multiple of kv_heads={self.kv_heads}, "
                             f"got {self.heads}")


GPT2_MEDIUM = Shape("GPT-2 medium", 1024, 16, 16, 64, 4096, False, 24,
                    "config.json of gpt2-medium, https://huggingface.co/openai-community/gpt2-medium")
LLAMA_3_8B = Shape("Llama 3 8B", 4096, 32, 8, 128, 14336, True, 32,
                   "config.json of Meta-Llama-3-8B, https://huggingface.co/meta-llama/Meta-Llama-3-8B")
SHAPES = (GPT2_MEDIUM, LLAMA_3_8B)


@dataclass(frozen=True)
class Operator:
    """One kernel of a layer; it has the fields that `models.roofline.time_s` asks for.

    `part` is "attention", "projection", "feed-forward" or "pointwise".
    """

    name: str
    part: str
    traffic: Traffic

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.traffic, name)


def with_head_dimension(shape: Shape, d: int) -> Shape:
    """Return the shape with heads of width d, and as many of them as keep all other widths."""
    wide, group = shape.heads * shape.d, shape.heads // shape.kv_heads
    if wide % check_block("d", d) or (wide // d) % group:
        raise ValueError(f"d: expected a divisor of {wide // group}, as wide as all key heads of "
                         f"{shape.name}, got {d}")
    return replace(shape, heads=wide // d, kv_heads=wide // d // group, d=d)


def layer(shape: Shape, N: int, batch: int = 1, dtype: str = "float16") -> list[Operator]:
    """Return the operators of one layer's forward pass over `batch` sequences of N tokens.

    `dtype` is that of every tensor and weight: "float16" moves 2 bytes an element. Attention is
    standard and dense; a key head is read once for the group of query heads that shares it.
    `fuse(operators, ATTENTION)` is the attention that keeps S and P on chip.
    """
    N, batch = check_block("N", N), check_block("batch", batch)
    check_choice("dtype", dtype, tuple(ELEMENT_BYTES))
    e, T, D, F = ELEMENT_BYTES[dtype], batch * N, shape.d_model, shape.ffn
    wide, narrow = shape.heads * shape.d, shape.kv_heads * shape.d
    bias = not shape.modern

    def pointwise(name, reads, writes, vector, exps=0, part="pointwise"):
        moved = {t: (e * n, 0) for t, n in reads.items()} | {t: (0, e * n) for t, n in writes.items()}
        return Operator(name, part, Traffic.of(moved, 0, vector, exps))

    def linear(name, part, x, inner, outputs):
        cols = sum(outputs.values())
        moved = {x: (e * T * inner, 0), f"W {name}": (e * (inner + bias) * cols, 0)}
        moved |= {out: (0, e * T * width) for out, width in outputs.items()}
        return Operator(name, part, Traffic.of(moved, 2 * T * inner * cols, bias * T * cols))

    def norm(number, x):
        per_element, per_row, weights = (4, 3, 1) if shape.modern else (7, 4, 2)
        return pointwise(f"norm {number}", {x: T * D, f"W norm {number}": weights * D},
                         {f"n{number}": T * D}, T * (per_element * D + per_row))

    rotate = []
    if shape.modern:
        rotate = [pointwise("rotate", {"Q": T * wide, "K": T * narrow, "angles": N * shape.d},
                            {"Q'": T * wide, "K'": T * narrow}, 3 * T * (wide + narrow))]
    up = {"gate": F, "up": F} if shape.modern else {"up": F}
    vector, exps = (4, 1) if shape.modern else (12, 1)
    return [
        norm(1, "x"),
        linear("project Q, K, V", "projection", "n1", D, {"Q": wide, "K": narrow, "V": narrow}),
        *rotate,
        *_attention(shape, N, batch, e),
        linear("project O", "projection", "O", wide, {"a": D}),
        pointwise("residual 1", {"x": T * D, "a": T * D}, {"x1": T * D}, T * D),
        norm(2, "x1"),
        linear("FFN up", "feed-forward", "n2", D, up),
        pointwise("SwiGLU" if shape.modern else "GELU", {t: T * F for t in up}, {"h": T * F},
                  vector * T * F, exps * T * F),
        linear("FFN down", "feed-forward", "h", F, {"f": D}),
        pointwise("residual 2", {"x1": T * D, "f": T * D}, {"x2": T * D}, T * D),
    ]


def _attention(shape, N, batch, e) -> list[Operator]:
    """Return the three kernels of attention, for all heads: they hand S and P on through HBM."""
    many, d = batch * shape.heads, shape.d
    Q, K = ("Q'", "K'") if shape.modern else ("Q", "K")
    square, wide, narrow = (e * n for n in (many * N * N, many * N * d, batch * shape.kv_heads * N * d))
    area = many * N * N
    costs = (
        Traffic.of({Q: (wide, 0), K: (narrow, 0), "S": (0, square)}, 2 * area * d, area),
        Traffic.of({"S": (square, 0), "P": (0, square)}, 0, 4 * area + 2 * many * N, area),
        Traffic.of({"P": (square, 0), "V": (narrow, 0), "O": (0, wide)}, 2 * area * d, many * N * d),
    )
    return [Operator(name, "attention", cost) for name, cost in zip(ATTENTION, costs, strict=True)]


def total(operators: Iterable[Operator]) -> Traffic:
    """Return the cost of running operators one after the other."""
    return sum((op.traffic for op in operators), Traffic())


def fuse(operators: Sequence[Operator], names: Iterable[str]) -> Operator:
    """Return one kernel that does the work of several, with what passes between them kept on chip.

    A tensor that is made inside and read by nobody else never moves; one that others of `operators`
    read is written once; one that comes from outside is read once, at the larger of its reads.
    Arithmetic is unchanged. This is a lower bound: it does not ask whether the tiles fit, nor how an
    algorithm could do it.

    Args:
        operators: the whole layer.
        names: which of its operators to fuse.
    """
    names = list(names)
    known = [op.name for op in operators]
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        raise ValueError(f"names: expected operators out of {known}, got {unknown or names}")
    inside = [op for op in operators if op.name in names]
    read_outside = {t for op in operators if op.name not in names
                    for t, m in op.traffic.by_tensor.items() if m.read_bytes}
    read_inside = {t for op in inside for t, m in op.traffic.by_tensor.items() if m.read_bytes}
    made = {t for op in inside for t, m in op.traffic.by_tensor.items() if m.write_bytes}
    cost, moved = total(inside), {}
    for op in inside:
        for t, m in op.traffic.by_tensor.items():
            before = moved.get(t, Moved())
            kept = t in read_outside or t not in read_inside
            moved[t] = Moved(0 if t in made else max(before.read_bytes, m.read_bytes),
                             before.write_bytes + (m.write_bytes if kept else 0))
    return Operator(" + ".join(op.name for op in inside), inside[0].part, Traffic.of(
        moved, cost.matmul_flops, cost.vector_flops, cost.exps, cost.sram_peak_bytes))
