"""The public op: `flash_attention(q, k, v)`, differentiable, on any backend that this machine has."""

from typing import Literal, Never, overload

import torch

from flashlib.arguments import check_choice, check_scale
from flashlib.kernels import ops
from flashlib.kernels.autocast import of_one_dtype
from flashlib.kernels.configs import BACKENDS
from flashlib.kernels.problem import CAUSAL, FULL, Problem, known
from flashlib.kernels.scores import NONE, PLAIN, kind_of, scores_of
from flashlib.masks import window_of

MAX_HEAD_DIM = 256
MAX_SCALE = 1e15                   # times the largest float16 score, 65,504² · 256, is still a float32
FLOATS = (torch.float16, torch.bfloat16, torch.float32)
# A type checker reads it: a test compares.
Impl = Literal["auto", "triton", "gluon", "decode", "reference"]
IMPLS = ("auto", *BACKENDS)
Sides = tuple[int | None, int | None] | None
MEANT = {                          # how others call what we have, or do not
    "is_causal": "did you mean causal=? It aligns bottom right, torch's is_causal top left",
    "softmax_scale": "did you mean scale=?", "sm_scale": "did you mean scale=?",
    "enable_gqa": "leave it out: k and v may always have fewer heads than q",
    "window_size": "did you mean window=(left, right)? None, not −1, is no bound",
    "attn_mask": "there is no mask but causal= and window=", "dropout_p": "there is no dropout",
    "alibi_slopes": "did you mean alibi=?", "logits_soft_cap": "did you mean softcap=?",
    **dict.fromkeys(("s_aux", "sinks", "learnable_sink"), "did you mean sink=?"),
    **dict.fromkeys(("score_mod", "bias", "attn_bias", "position_bias"),
                    "scores are changed by softcap=, alibi= and sink= alone; for anything else there is"
                    " torch.nn.attention.flex_attention"),
}


@overload
def flash_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool = False,
                    window: Sides = None, scale: float | None = None, softcap: float | None = None,
                    alibi: torch.Tensor | None = None, sink: torch.Tensor | None = None,
                    return_lse: Literal[False] = False, impl: Impl = "auto") -> torch.Tensor: ...
@overload
def flash_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool = False,
                    window: Sides = None, scale: float | None = None, softcap: float | None = None,
                    alibi: torch.Tensor | None = None, sink: torch.Tensor | None = None,
                    return_lse: Literal[True], impl: Impl = "auto"
                    ) -> tuple[torch.Tensor, torch.Tensor]: ...
def flash_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool = False,
                    window: Sides = None, scale: float | None = None, softcap: float | None = None,
                    alibi: torch.Tensor | None = None, sink: torch.Tensor | None = None,
                    return_lse: bool = False, impl: Impl = "auto", **unknown: Never
                    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Exact attention with O(N) memory: FlashAttention-2 as a differentiable torch function.

    Layout as in `torch.nn.functional.scaled_dot_product_attention`. With `causal`, row i sees keys
    j ≤ i + N_k − N_q (bottom right, as FlashAttention does; torch's `is_causal` aligns top left). A row
    that sees no key gives O = 0, lse = −∞ and zero gradients. Taught in notebook 10.

    Args:
        q: queries, (B, H, N_q, D).  k, v: (B, H_k, N_k, D); H_k may be smaller if it divides H
            (grouped or multi-query attention). float16, bfloat16 or float32; on the CPU float64 too.
            Any strides. D up to 256; that of v may differ (192 and 128), and copies with zeros behind
            the narrower ones are made, of the time and room of the wider. In `torch.autocast` tensors
            of unlike dtypes are cast to its dtype, as in SDPA; those of one dtype keep it.
        causal: hide later keys.
        window: (left, right), two whole numbers from 0: row i sees the keys from i + N_k − N_q − left
            to i + N_k − N_q + right, and None is no bound (FlashAttention's `window_size`, with its
            −1). With `causal`, right is 0 whatever it says. Tiles outside cost nothing.
        scale: factor on the logits, None for 1/√D; may be 0 or negative, at most 1e15 in size.
        softcap: c > 0 makes c · tanh(s / c) of every scaled logit s (Gemma 2); None for none.
        alibi: slopes, (H,) or (B, H) float32: slope · |i + N_k − N_q − j| is taken off the logit of
            row i and key j, after the softcap (FlashAttention's `alibi_slopes`). No gradient.
        sink: (H,), a logit of each head, natural log and not scaled, that stands in the sum of every
            row and has no value (gpt-oss's `s_aux`); lse has it in, and a row that sees no key gets
            O = 0 and lse = sink. float32, or a 16-bit float, which is cast. It has a gradient.
        return_lse: return (O, lse), lse (B, H, N_q) float32, natural log; both are differentiable.
        impl: "auto" (on a GPU the faster of our kernels for the shape; on the CPU tiled torch, there
            to be right: on one core it takes about 1.4 times as long as torch's own attention, and many
            times as long where busy cores make its threads wait for one another);
            "triton" (on CPU tensors it runs in Triton's interpreter, which must be switched on: float16
            and float32 only); "gluon" (on a Hopper GPU: 16 bits, 16 ≤ D, in tiles of 32, 64, 128 or 256
            columns, padding included, strides that its copy engine reads; on CPU tensors in the
            course's interpreter, under the same switch; backward it needs a D that 8 divides, or
            Triton's takes over), "decode" (the keys shared out, see `flash_decode`; "auto" takes it for
            few queries) or "reference".
    Returns:
        O (B, H, N_q, D of v) in the dtype of q, or (O, lse). Of float64, lse is float64.
    Raises:
        ValueError, TypeError, NotImplementedError: before any launch, naming the argument, what was
            expected and what came.

    Differentiable once, backward: a double backward and forward-mode derivatives are refused.
    `torch.func.grad`, `vjp`, `jacrev` (none inside `torch.compile`) and `vmap` work; what vmap maps
    over joins the batch.

    Bit-identical from run to run. Sums over keys come before the division, so |V| · N_k has to stay
    below float32's 3.4e38. A NaN or an infinity reaches the rows that see it; beyond them, in the tiles
    that a mask cuts (a tensor core multiplies zeros too) and in no other:

        it stands in                "reference"   the kernels, in such a tile
        a value                     nothing       O of every row
        a key                       nothing       dQ of every row, never O
        a query, or O's gradient    nothing       dK and dV of every key
        the gradient of a row       nothing       nothing
          that sees no key
    """
    if unknown:
        name = next(iter(unknown))
        raise TypeError(f"flash_attention() got an unexpected keyword argument {name!r}"
                        + (f": {MEANT[name]}" if name in MEANT else ""))
    plain = softcap is None and alibi is None and sink is None
    traced = torch.compiler.is_compiling() or ops.transformed()
    kind = PLAIN if plain or traced else kind_of(softcap, alibi, sink)
    p = None if traced else _accepted(q, k, v, causal, window, kind, return_lse, impl)
    if p is None and are_unlike(q, k, v):
        return of_unlike(flash_attention, q, k, v, scale=scale, return_lse=return_lse, causal=causal,
                         window=window, softcap=softcap, alibi=alibi, sink=sink, impl=impl)
    if traced:
        q, k, v, scale = check_arguments(q, k, v, causal, scale, return_lse, impl)
        seen, scores = window_of(causal, window), scores_of(q, softcap, alibi, sink)
        if torch.compiler.is_compiling():
            o, lse = ops.attention_forward(q, k, v, seen.left, seen.right, scale, impl, *scores)
        else:                                               # so that vmap finds a batch in all of them
            alibi, sink = (None if x is None else x.expand(q.shape[:2]) for x in scores[1:])
            o, lse = ops.TransformedAttention.apply(q, k, v, seen, scale, impl, None, scores.softcap,
                                                    alibi, sink)
        return (o, lse) if return_lse else o
    if p is None:
        q, k, v, factor = check_arguments(q, k, v, causal, scale, return_lse, impl)
        scores = NONE if plain else scores_of(q, softcap, alibi, sink)
        p = Problem.of(q, k, v, window=window_of(causal, window), scores=kind)
        p.made["scale"] = check_scale(None, p.D)
    else:
        factor: float = p.made["scale"] if scale is None else check_factor(scale, p.D)
        scores = NONE if plain else scores_of(q, softcap, alibi, sink)
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad or (
            scores.sink is not None and scores.sink.requires_grad)):
        o, lse = ops.Attention.apply(q, k, v, p.window, factor, impl, p, *scores)
    else:
        o, lse = ops.forward(q, k, v, p.window, factor, impl, p, *scores)
    return (o, lse) if return_lse else o


def _accepted(q, k, v, causal, window, kind, return_lse, impl) -> Problem | None:
    """Return the problem of arguments like which some were accepted before, else None."""
    if type(causal) is not bool or type(return_lse) is not bool or impl not in IMPLS:
        return None
    seen = (CAUSAL if causal else FULL) if window is None else window_of(causal, window)
    try:
        p = known(q, k, v, seen, kind)
    except (AttributeError, RuntimeError, TypeError):       # no dense tensors: told by the checks
        return None
    return p if p is not None and "scale" in p.made else None


def check_factor(scale, D: int) -> float:
    """Return the factor on the logits, or refuse it."""
    scale = check_scale(scale, D)
    if abs(scale) > MAX_SCALE:
        raise ValueError(f"scale: expected at most {MAX_SCALE:.0e} in size, so that the logits are"
                         f" finite, got {scale}")
    return scale if abs(scale) > 2.0**-126 else 0.0         # a subnormal factor is none


def are_unlike(q, k, v) -> bool:
    """Tell whether values have another head dimension than keys, and all else agrees."""
    return (all(isinstance(x, torch.Tensor) and x.layout == torch.strided and not x.is_nested and x.ndim
                for x in (q, k, v)) and v.shape[:-1] == k.shape[:-1] and q.shape[-1] == k.shape[-1]
            and 0 < v.shape[-1] != k.shape[-1] > 0 and max(v.shape[-1], k.shape[-1]) <= MAX_HEAD_DIM)


def of_unlike(attend, q, k, v, *starts, scale=None, return_lse=False, **options):
    """Attend with zeros behind the narrower heads: they add nothing to a score, and theirs of O go."""
    D, D_v = k.shape[-1], v.shape[-1]
    q, k, v = (torch.nn.functional.pad(x, (0, n)) if n > 0 else x
               for x, n in ((q, D_v - D), (k, D_v - D), (v, D - D_v)))
    found = attend(q, k, v, *starts, scale=check_scale(scale, D), return_lse=return_lse, **options)
    return (found[0][..., :D_v], found[1]) if return_lse else found[..., :D_v]


def check_dense(dims: str, q, k, v):
    """Return dense tensors of these dimensions in one dtype, v in the shape of k, or refuse by name."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, torch.Tensor):
            raise TypeError(f"{name}: expected a torch.Tensor, got {type(x).__name__}")
        if x.is_nested or x.layout != torch.strided:
            raise TypeError(f"{name}: expected a dense tensor, got "
                            f"{'a nested tensor' if x.is_nested else x.layout}")
        if x.ndim != dims.count(",") + 1:
            raise ValueError(f"{name}: expected {dims.count(',') + 1} dimensions {dims}, got shape"
                             f" {tuple(x.shape)}")
    if v.shape != k.shape and k.shape[-1] == q.shape[-1] > 0:
        raise ValueError(f"v: expected the shape of k, {tuple(k.shape)}, got {tuple(v.shape)}")
    return (q, k, v) if q.dtype == k.dtype == v.dtype else of_one_dtype(q, k, v)


def check_tensor(name: str, x, dtype, shape: tuple, device, of: str = "") -> None:
    """Refuse by name what is no tensor like this, on a device `of` something; a text is any size."""
    if not isinstance(x, torch.Tensor):
        raise TypeError(f"{name}: expected a torch.Tensor, got {type(x).__name__}")
    if x.dtype != dtype:
        raise TypeError(f"{name}: expected {str(dtype).removeprefix('torch.')}, got {x.dtype}")
    if x.ndim != len(shape) or any(n != m for n, m in zip(shape, x.shape, strict=True)
                                   if isinstance(n, int)):
        raise ValueError(f"{name}: expected shape ({', '.join(map(str, shape))}"
                         f"{',' * (len(shape) == 1)}), got {tuple(x.shape)}")
    if x.device != device:
        raise ValueError(f"{name}: expected a tensor on {device}{of}, got {x.device}")


def check_arguments(q, k, v, causal, scale, return_lse, impl):
    """Return q, k and v in one dtype, and the scale as a float, or refuse by name."""
    q, k, v = check_dense("(B, H, N, D)", q, k, v)
    if not q.device == k.device == v.device:
        raise ValueError(f"q, k, v: expected one device, got {q.device}, {k.device}, {v.device}")
    if q.dtype not in FLOATS and not (q.dtype == torch.float64 and not q.is_cuda):
        raise TypeError(f"q: expected float16, bfloat16 or float32 (float64 on the CPU only),"
                        f" got {q.dtype} on {q.device.type}")
    (B, H, _, D), (Bk, Hk, _, Dk) = q.shape, k.shape
    if D == 0:
        raise ValueError("q: expected a head dimension D of at least 1, got 0")
    if D > MAX_HEAD_DIM:
        raise NotImplementedError(f"q: expected a head dimension D of at most {MAX_HEAD_DIM}, got {D}")
    if Dk != D:
        raise ValueError(f"k: expected head dimension {D} as in q, got {Dk}")
    if Bk != B:
        remedy = f"; use k.expand({B}, ...) to share one batch entry" if Bk == 1 else ""
        raise ValueError(f"k, v: expected batch size {B} as in q, got {Bk}{remedy}")
    if H == 0 or Hk == 0:
        raise ValueError(f"q, k: expected at least one head, got {H} and {Hk}")
    if H % Hk:
        raise ValueError(f"q: expected a number of heads that {Hk}, the heads of k, divides, got {H}")
    if not isinstance(causal, bool):
        raise TypeError(f"causal: expected True or False, got {causal!r}")
    if not isinstance(return_lse, bool):
        raise TypeError(f"return_lse: expected True or False, got {return_lse!r}")
    check_choice("impl", impl, IMPLS)
    return q, k, v, check_factor(scale, D)
