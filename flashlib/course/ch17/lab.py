"""The lab of chapter 17: what a faster attention buys a model, and what a token must read."""

from flashlib import hardware
from flashlib.course.ch17 import figures, race
from flashlib.course.widgets import base

MODELS = {"GPT-2 small: 12 × 768": (12, 768), "SmolLM2-360M's width: 32 × 960": (32, 960),
          "Llama-7B's: 32 × 4,096": (32, 4096), "Llama-70B's: 80 × 8,192": (80, 8192)}
LENGTHS = tuple(2**n for n in range(10, 18))
RATES = (100, 150, 200, 300, 400, 500, 600)
GPUS = ("A100", "H100", "H200", "B200", "RTX 4090")
TOKENS, REACHED = 65536, 0.7                                # of a step; of the datasheet's matmul rate
FIRST = next(iter(MODELS))


def rate_of_matrices(sheet) -> float:
    """Return the FLOP/s that a GPU's matmuls are taken to reach."""
    return REACHED * float(sheet.matmul_flops_per_s["bfloat16"])


def layer_seconds(N, C, dense_rate, rate) -> tuple[float, float]:
    """Return the seconds of a causal layer's matrices and of its attention, forward, at two rates."""
    return TOKENS * 24 * C * C / dense_rate, TOKENS * 2 * N * C / rate


def draw(model=FIRST, N=4096, before=200, after=400, gpu="H200"):
    """Draw a layer's forward at two rates of attention, in TFLOP/s; say share, gain, tokens/s."""
    (L, C), sheet = MODELS[model], hardware.get(gpu)
    dense_rate = rate_of_matrices(sheet)
    times = {f"{rate} TFLOP/s": layer_seconds(N, C, dense_rate, 1e12 * rate)
             for rate in (before, after)}
    part, faster = race.share(N, C, dense_rate / (1e12 * before)), after / before
    weights, cache = 2 * 12 * L * C * C, 4 * L * C * N
    most = race.tokens_per_s(weights, cache, float(sheet.hbm_bytes_per_s))
    lines = [f"{model}, {N:,} tokens, {sheet.name}", f"attention is {part:.0%} of a layer;"
             f" {faster:.3g}× its rate makes the layer {race.speedup(part, faster):.2f}× as fast,"
             f" at most {1 / (1 - part):.2f}×",
             f"writing behind {N:,} keys: at most {most:,.0f} tokens/s for one sequence in 16 bits"]
    if before == after:
        times = {f"{before} TFLOP/s": times[f"{before} TFLOP/s"]}
    return figures.step(times, lines)


def model_lab(model=FIRST, N=4096, before=200, after=400, gpu="H200"):
    """Return the widget: model, length, attention's rate before and after, GPU.

    The arguments are what it shows at first; see `draw`.
    """
    control, on_gpu = base.over_gpus(draw, gpu, "whose matmul rate and memory", GPUS)
    return base.Lab("model_lab", {
        "model": base.choice(MODELS, model, "layers × columns"),
        "N": base.choice([(f"{n:,}", n) for n in base.including(N, LENGTHS)], N, "length"),
        "before": base.choice(base.including(before, RATES), before, "attention, TFLOP/s"),
        "after": base.choice(base.including(after, RATES), after, "and then"),
        "gpu": control,
    }, on_gpu, note=f"Matrices at {REACHED:.0%} of the datasheet's rate; heads are not shared.")
