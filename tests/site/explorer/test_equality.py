"""The explorers' numbers are those of `flashlib.models`: on random shapes, every field, exactly."""

import random
from collections import Counter

import numpy as np
import pytest

from flashlib import Machine, hardware
from flashlib.algorithms.flash_v1 import flash_v1
from flashlib.algorithms.flash_v2 import flash_v2
from flashlib.algorithms.one_pass import one_pass_attention
from flashlib.algorithms.softmax import safe_softmax
from flashlib.course.ch04 import lab
from flashlib.course.plots.theme import human_bytes, human_room
from flashlib.hardware import human
from flashlib.masks import mask_of, tile_class, tiles
from flashlib.models import roofline, traffic
from scripts.explorer_data import camel, gpus

pytestmark = pytest.mark.site

FORMS = {"flash_v1": "flashV1", "flash_v2": "flashV2", "flash_v3": "flashV3", "flash_v4": "flashV4",
         "flash_decode": "flashDecode",
         "standard_attention": "standardAttention", "flash_backward": "flashBackward",
         "standard_backward": "standardBackward"}
CASES = 6000


def random_case(rng):
    """Return a closed form's name and keywords: ragged, causal and windowed shapes, empty ones too."""
    name, most = rng.choice(list(FORMS)), rng.choice([3, 30, 300, 5000, 65536])
    sizes = {f"{kind}_bytes": rng.randint(1, 8) for kind in ("element", "stats", "accumulator")}
    shape = {"Nq": rng.randint(0, most), "Nk": rng.randint(0, most), "d": rng.randint(1, 256), **sizes}
    shape = {key: size for key, size in shape.items()
             if not key.endswith("_bytes") or rng.random() < 0.8}
    if name == "standard_backward":
        return name, shape
    if name != "standard_attention" or rng.random() < 0.7:
        shape |= {"Br": rng.randint(max(1, most // 300), 600), "Bc": rng.randint(1, 600)}
    if rng.random() < 0.8:
        shape["causal"] = rng.random() < 0.6
    if rng.random() < 0.5:
        shape["window"] = tuple(rng.choice([None, rng.randint(0, most + 5)]) for _ in range(2))
    if name == "flash_v3":
        shape["fp8"] = rng.random() < 0.7
    if name == "flash_v4" and rng.random() < 0.7:
        share = rng.choice([0.25, 0.5, 1.0, rng.random()])
        shape |= {"exp2_degree": rng.randint(1, 7), "emulated_share": share}
    if name == "flash_decode":
        if rng.random() < 0.8:
            shape["keys"] = rng.choice([rng.randint(1, most + 9), shape["Bc"] * rng.randint(1, 9)])
        shape["group"] = rng.choice([1, 2, 4, rng.randint(1, 16)])
    if name == "flash_backward":
        shape |= {"order": rng.choice(["kv", "q"]), "dlse": rng.random() < 0.5}
    return name, shape


def argument(shape):
    window = shape.get("window")
    return {camel(key): value for key, value in shape.items() if key != "window"} | {
        "window": window and {"left": window[0], "right": window[1]}}


def test_every_closed_form_is_pythons_on_random_shapes(node):
    rng = random.Random(20)
    cases = [random_case(rng) for _ in range(CASES)]
    answers = node([(FORMS[name], argument(shape)) for name, shape in cases])
    largest = 0
    for (name, shape), got in zip(cases, answers, strict=True):
        want = getattr(traffic, name)(**shape)
        largest = max(largest, want.flops, want.hbm_bytes)
        assert got["byTensor"] == {t: list(m) for t, m in want.by_tensor.items()}, (name, shape)
        fields = ("readBytes", "writeBytes", "matmulFlops", "vectorFlops", "exps", "sramPeakBytes")
        assert [got[f] for f in fields] == [
            want.hbm_read_bytes, want.hbm_write_bytes, want.matmul_flops, want.vector_flops, want.exps,
            want.sram_peak_bytes], (name, shape)
        assert sum(size for _, size in got["held"]) == want.sram_peak_bytes, (name, shape)
    assert largest < 2**53, "a count too large for the numbers of TypeScript"


def test_times_and_bounds_are_pythons(node):
    rng = random.Random(21)
    calls, wants = [], []
    for _ in range(400):
        name, shape = random_case(rng)
        gpu = rng.choice(hardware.ALL)
        sheet = next(sheet for sheet in gpus() if sheet["name"] == gpu.name)
        dtype = rng.choice(list(gpu.matmul_flops_per_s))
        cost = getattr(traffic, name)(**shape)
        js = {"readBytes": cost.hbm_read_bytes, "writeBytes": cost.hbm_write_bytes, "exps": cost.exps,
              "matmulFlops": cost.matmul_flops, "vectorFlops": cost.vector_flops}
        calls.append(("timeOf", js, sheet, dtype))
        want = roofline.time_s(cost, gpu, dtype)
        wants.append({"parts": want.parts, "timeS": want.time_s, "bound": want.bound})
        calls.append(("ridge", sheet, dtype))
        wants.append(roofline.ridge(gpu, dtype))
    assert node(calls) == wants


def test_of_equal_parts_the_first_is_the_bound(node):
    cost = traffic.Traffic(8, 0, 8, 8, 8)
    gpu = hardware.GPU.custom("even", sram_bytes=1, hbm_bytes_per_s=4, matmul_flops_per_s=4,
                              vector_flops_per_s=4, exps_per_s=4)
    sheet = {"bytesPerS": 4, "matmulFlopsPerS": {"float16": 4}, "vectorFlopsPerS": 4, "expsPerS": 4}
    js = {"readBytes": 8, "writeBytes": 0, "matmulFlops": 8, "vectorFlops": 8, "exps": 8}
    (got,) = node([("timeOf", js, sheet, "float16")])
    assert got["bound"] == roofline.time_s(cost, gpu, "float16").bound == "memory"


def test_quantities_are_written_as_python_writes_them(node):
    rng = random.Random(22)
    values = [*range(1200), *(1024 * n // 8 for n in range(4000)), 99949, 99950, 99951,
              *(n * 10**6 // 4 for n in range(500)), *(rng.randint(0, 10**13) for _ in range(2000))]
    calls = [(f, v) for v in values for f in ("humanBytes", "humanRoom")]
    want = [text for v in values for text in (human_bytes(v), human_room(v))]
    assert node(calls) == want
    floats = np.random.default_rng(3).uniform(1, 1e6, 500).tolist()
    assert node([("human", v, "B") for v in floats]) == [human(v, "B") for v in floats]


def test_tiles_are_counted_as_the_mask_classes_them(node):
    rng = random.Random(23)
    calls, wants = [], []
    for _ in range(300):
        Nq, Nk = rng.randint(1, 90), rng.randint(1, 90)
        Br, Bc, causal = rng.randint(1, 30), rng.randint(1, 30), rng.random() < 0.5
        left, right = (rng.choice([None, rng.randint(0, 60)]) for _ in range(2))
        mask = mask_of(causal, Nq, Nk, (left, right))
        kinds = Counter(tile_class(mask, rows, keys)
                        for rows in tiles(Nq, Br) for keys in tiles(Nk, Bc))
        state = {"Nq": Nq, "Nk": Nk, "Br": Br, "Bc": Bc, "causal": causal, "left": left,
                 "right": right}
        calls.append(("tallyOf", state))
        wants.append({"full": kinds["full"], "cut": kinds["partial"], "skipped": kinds["skip"]})
    assert node(calls) == wants


def test_what_is_held_at_the_peak_is_what_the_machine_holds(node):
    rng, data = random.Random(24), np.random.default_rng(24)
    for _ in range(12):
        Nq, Nk, d = rng.randint(1, 40), rng.randint(1, 40), rng.choice([4, 8])
        sizes = {"Br": rng.randint(1, 20), "Bc": rng.randint(1, 20)}
        Q, K, V = (data.standard_normal((n, d)) for n in (Nq, Nk, Nk))
        causal = rng.random() < 0.5
        for algorithm in (flash_v1, flash_v2):
            machine = Machine()
            algorithm(Q, K, V, **sizes, causal=causal, machine=machine)
            want = Counter()
            for name, _, size in machine.peak_tiles:
                want[name] += size
            shape = {"Nq": Nq, "Nk": Nk, "d": d, "causal": causal, **sizes}
            (got,) = node([(FORMS[algorithm.__name__], shape)])
            assert Counter(dict(got["held"])) == want, (algorithm.__name__, shape)


def test_softmax_steps_are_those_of_the_tested_algorithms(node):
    rng = np.random.default_rng(25)
    for n in (1, 2, 5, 16):
        x, v = rng.normal(0, 6, n), rng.normal(0, 2, n)
        three, two, one = node([("steps", method, x.tolist(), v.tolist()) for method in "321"])
        assert [len(three), len(two), len(one)] == [3 * n, 2 * n, n + 1]
        weights = safe_softmax(x[None])[0]
        m, l, factor = lab.walk(x)
        for k in range(n):
            assert three[k]["m"] == m[k]
            assert three[2 * n + k]["p"] == pytest.approx(weights[k], rel=1e-14)
            for s in (two[k], one[k]):
                assert s["m"] == m[k]
                assert [s["l"], s["alpha"]] == pytest.approx([l[k], factor[k]], rel=1e-14)
            O, lse = one_pass_attention(np.ones((1, 1)), x[:k + 1, None], v[:k + 1, None],
                                        scale=1.0)
            assert one[k]["o"] / one[k]["l"] == pytest.approx(O[0, 0], rel=1e-12, abs=1e-14)
            assert one[k]["m"] + np.log(one[k]["l"]) == pytest.approx(lse[0], rel=1e-14)
        for last in (three[-1], two[-1], one[-1]):
            assert last["o"] == pytest.approx(O[0, 0], rel=1e-12, abs=1e-14)
        reads = [steps[-1]["loads"] for steps in (three, two, one)]
        assert reads == [3 * n, 2 * n, n]


def test_hidden_keys_and_typing_errors(node):
    hidden, one, text, many = node([
        ("stepsOf", "-inf, 2 −inf; 1e0"), ("parse", "1"), ("parse", "1 two"), ("parse", "1 " * 17)])
    assert hidden[0]["l"] == 0 and hidden[-1]["l"] == pytest.approx(1 + np.exp(-1))
    assert hidden[-1]["o"] == pytest.approx((2 + 4 * np.exp(-1)) / (1 + np.exp(-1)))
    assert one == [1] and text == "“two” is no number." and many.startswith("At most 16")
