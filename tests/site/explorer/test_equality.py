"""The explorers' numbers are those of `flashlib.models`: on random shapes, every field, exactly."""

import random

import numpy as np
import pytest

from flashlib import hardware
from flashlib.course.plots.theme import human_bytes, human_room
from flashlib.hardware import human
from flashlib.models import roofline, traffic
from scripts.explorer_data import gpus

pytestmark = pytest.mark.site

FORMS = {"flash_v1": "flashV1", "flash_v2": "flashV2", "flash_v3": "flashV3", "flash_v4": "flashV4",
         "standard_attention": "standardAttention", "flash_backward": "flashBackward",
         "standard_backward": "standardBackward"}
CASES = 6000


def camel(name):
    """Return a name as TypeScript writes it; the paper's letters, such as Br, stay."""
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


def random_case(rng):
    """Return a closed form's name and keywords: ragged, causal and windowed shapes, empty ones too."""
    name, most = rng.choice(list(FORMS)), rng.choice([3, 30, 300, 5000, 65536])
    sizes = {f"{kind}_bytes": rng.randint(1, 8) for kind in ("element", "stats", "accumulator")}
    shape = {"Nq": rng.randint(0, most), "Nk": rng.randint(0, most), "d": rng.randint(1, 256), **sizes}
    if name == "standard_backward":
        return name, shape
    if name != "standard_attention" or rng.random() < 0.7:
        shape |= {"Br": rng.randint(max(1, most // 300), 600), "Bc": rng.randint(1, 600)}
    shape["causal"] = rng.random() < 0.5
    if rng.random() < 0.5:
        shape["window"] = tuple(rng.choice([None, rng.randint(0, most + 5)]) for _ in range(2))
    if name == "flash_v3":
        shape["fp8"] = rng.random() < 0.7
    if name == "flash_v4" and rng.random() < 0.7:
        shape |= {"exp2_degree": rng.randint(1, 7), "emulated_share": rng.choice([0.25, 0.5, 1.0, rng.random()])}
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


def test_quantities_are_written_as_python_writes_them(node):
    rng = random.Random(22)
    values = [*range(1200), *(1024 * n // 8 for n in range(4000)), *(rng.randint(0, 10**13) for _ in range(2000)),
              *(n * 10**6 // 4 for n in range(500)), 99949, 99950, 99951, 999500, 10**6 - 1]
    calls = [(f, v) for v in values for f in ("humanBytes", "humanRoom")]
    want = [text for v in values for text in (human_bytes(v), human_room(v))]
    assert node(calls) == want
    floats = np.random.default_rng(3).uniform(1, 1e6, 500).tolist()
    assert node([("human", v, "B") for v in floats]) == [human(v, "B") for v in floats]
