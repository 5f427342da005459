"""The Gluon backward kernels run on the CPU: accuracy, orders, counts, and who waits for whom."""

import itertools
import random
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton.experimental.gluon")

from triton.experimental.gluon import language as gl  # noqa: E402

import flashlib  # noqa: E402
from flashlib.interpreter import Hazard, orders, run  # noqa: E402
from flashlib.interpreter.run import Translator  # noqa: E402
from flashlib.interpreter.tasks import Program  # noqa: E402
from flashlib.interpreter.values import Tensor  # noqa: E402
from flashlib.kernels import plans, scheduling, sums  # noqa: E402
from flashlib.kernels.backends import gluon  # noqa: E402
from flashlib.kernels.gluon import backward_fused  # noqa: E402
from flashlib.kernels.gluon.meanings import meaning_of  # noqa: E402
from flashlib.kernels.problem import Problem  # noqa: E402
from flashlib.masks import visits, window_of  # noqa: E402
from tests.kernels.once import run_once  # noqa: E402
from tests.kernels.problems import Shape, problem, solve  # noqa: E402
from tests.kernels.test_gluon_interpreted import (  # noqa: E402
    HALVES,
    MASKS,
    SHAPES,
    require_right,
    switched_on,
)

__all__ = ["switched_on"]                                   # a fixture


@pytest.mark.parametrize("D", [32, 64, 128, 256,
                               *(pytest.param(D, marks=pytest.mark.more) for D in (40, 96, 192))])
@pytest.mark.parametrize("causal, window", MASKS)
def test_the_backward_is_right_on_every_shape(D, causal, window):
    for seed, shape in enumerate(SHAPES[:4]):
        given = problem(Shape(*shape, D, causal, window), HALVES[seed % 2], seed=seed,
                        with_lse=seed % 2 == 1)
        got = solve(given, lambda *x, **y: flashlib.flash_attention(*x, **y, impl="gluon"))
        require_right(got, given, ("O", "lse", "dQ", "dK", "dV"))


@pytest.mark.parametrize("scale", [0.0, -0.3, 1e-12, 4.0])
@pytest.mark.parametrize("D", [32, 64, 128])
def test_every_scale_is_right(D, scale):
    given = problem(Shape(1, 2, 1, 130, 200, D, True), torch.float16, scale=scale, seed=3)
    got = solve(given, lambda *x, **y: flashlib.flash_attention(*x, **y, impl="gluon"))
    require_right(got, given, ("dQ", "dK", "dV"))


def arguments_of(given, part):
    """Return (kernel, grid, arguments by name) of a backward's kernel."""
    q, k, v = given[:3]
    p = gluon.on_hopper(Problem.of(q, k, v, q, q, window=window_of(given.causal, given.window)))
    launch = plans.launches_for(gluon.BACKEND, p, "backward", None, False)[part]
    lse, dk, dv = torch.zeros(q.shape[:3]), torch.zeros_like(k), torch.zeros_like(v)
    factors = q.shape[3] ** -0.5, gluon.factor(q.shape[3] ** -0.5)
    if part == "fused":
        made = sums.buffers(p, gluon.head_dim_of(p))
        sums.before_on_cpu(q, given.do, lse, None, made, factors[0])
        leading = q, k, v, given.do, *made[:2], dk, dv, made[3], made[2], *factors
    else:
        leading = q, k, v, given.do, lse, lse, *((dk, dv) if part == "dkdv" else (dk,)), *factors
        if part == "dq":
            leading = *leading[:6], torch.zeros_like(q), *factors
    kernel = launch.plan.kernel
    values = launch.bound(*leading)
    return kernel.kernel, launch.grid[0], dict(zip(kernel.arg_names, values, strict=True))


@pytest.mark.parametrize("part, written", [("dkdv", ("dk_desc", "dv_desc")), ("dq", ("dq_desc",))])
@pytest.mark.parametrize("causal", [False, True])
def test_every_order_gives_the_same_gradients(part, written, causal):
    given = problem(Shape(1, 2, 1, 130, 200, 256, causal), torch.bfloat16)
    kernel, grid, arguments = arguments_of(given, part)
    orders(kernel, grid, arguments, written, seeds=range(3), meanings=meaning_of)


@pytest.mark.parametrize("D, causal, window, waves", [
    (32, False, None, (1, 0, 1)), (64, False, None, (1, 0, 1)), (64, True, None, (1, 0, 1)),
    (64, True, None, (1, 1, 1)), (128, True, None, (2, 2, 1)), (128, True, None, (1, 2, 2)),
    (64, True, None, (2, 2, 3)), (128, False, (40, 10), (1, 0, 1))])
def test_every_order_gives_the_same_sums(D, causal, window, waves, monkeypatch):
    """Tasks in all orders, each from locks that are 0 again; some of the two heads in waves."""
    monkeypatch.setattr(scheduling, "beside", lambda p, head_dim: waves)
    given = problem(Shape(1, 2, 1 + causal, 200, 300, D, causal, window), torch.bfloat16)
    found = []
    for order in ("late", "early", 0, 1, 2):
        kernel, grid, arguments = arguments_of(given, "fused")
        assert tuple(arguments[name] for name in ("TOGETHER", "IN_WAVES", "WAVE")) == waves
        run(kernel, grid, arguments, order=order, meanings=meaning_of)
        found.append([arguments[name].base.clone() for name in ("sum_desc", "dk_desc", "dv_desc")])
    for others in found[1:]:
        assert all(torch.equal(x.nan_to_num(7), y.nan_to_num(7))
                   for x, y in zip(found[0], others, strict=True))


def test_two_launches_from_the_same_locks_would_wait_for_ever():
    given = problem(Shape(1, 1, 1, 200, 300, 64), torch.float16)
    kernel, grid, arguments = arguments_of(given, "fused")
    run(kernel, grid, arguments, meanings=meaning_of)
    arguments["LOCKS"][0] = 0
    with pytest.raises(Hazard, match=r"backward_fused\.py:\d+: add \d waits for ever: its lock is"):
        run(kernel, grid, arguments, meanings=meaning_of)


@pytest.mark.parametrize("D, causal, window, columns", [
    (32, False, None, 5 * 32), (64, True, None, 5 * 64), (128, False, (70, 5), 5 * 128),
    (80, True, None, 2 * 80 + 2 * 96 + 128), (104, False, None, 5 * 128)])
def test_the_fused_kernel_moves_and_multiplies_what_its_tiles_ask_for(D, causal, window, columns):
    B, H, H_K, N_Q, N_K = 1, 4, 2, 200, 300
    given = problem(Shape(B, H, H_K, N_Q, N_K, D, causal, window), torch.float16)
    kernel, grid, arguments = arguments_of(given, "fused")
    counts = run(kernel, grid, arguments, meanings=meaning_of).counts
    pairs = B * H * int(sum(visits(window_of(causal, window), N_Q, N_K, 64, 128)))
    assert counts["flops"] == 2 * pairs * 64 * 128 * columns
    assert counts["exponentials"] == pairs * 64 * 128
    assert counts["loaded k_desc"] == counts["loaded v_desc"] == B * H_K * N_K * D * 2
    assert counts["stored dk_desc"] == counts["stored dv_desc"] == B * H_K * N_K * D * 2
    assert counts["stored sum_desc"] == pairs * 64 * (128 if D > 64 else D) * 4     # of whole tiles
    assert counts["loaded lse_desc"] == counts["loaded delta_desc"] == pairs * 64 * 4


def whole(n):
    return Tensor(np.int64(n), gl.int32)


@pytest.mark.parametrize("mask", ["none", "causal", "rising", "waves", "window"])
def test_of_every_sum_the_turns_are_0_1_2_in_the_order_of_the_numbers(mask):
    """So a program waits only for those that took their numbers before it: none waits in a circle.

    The kernel's own functions, for hundreds of lengths: every head has each of its key tiles once, and
    of each query tile's sums programs must find the turns 0, 1, 2, … in the order of their numbers.
    """
    translate = Translator(Program("late", (0, 1)), meaning_of)
    walk_of, turn_of, seat_of = (translate.function(getattr(backward_fused, name).fn)
                                 for name in ("walk_of", "turn_of", "seat_of"))
    draw, causal = random.Random(mask), mask in ("causal", "rising", "waves")
    for _ in range(120):
        N_Q, N_K = draw.randint(1, 3000), draw.randint(1, 3000)
        window = (draw.randint(0, 900), draw.randint(0, 900)) if mask == "window" else None
        o = SimpleNamespace(BLOCK_M=64, BLOCK_N=128, IS_CAUSAL=causal, RAGGED=N_K % 128 != 0)
        sizes = SimpleNamespace(N_Q=whole(N_Q), N_K=whole(N_K),
                                window=window and tuple(map(whole, window)))
        tiles, heads = -(-N_K // 128), draw.randint(1, 5)
        waves = (draw.randint(1, heads), draw.randint(1, heads) if mask in ("rising", "waves") else 0,
                 draw.randint(2, 9) if mask == "waves" else 1)
        taken, seen = {}, set()
        for number in range(heads * tiles):
            head, tile, wave = seat_of(whole(number), whole(heads), whole(tiles), *map(whole, waves), o)
            seen.add((int(head), int(tile)))
            begin, end, start, cut = map(int, walk_of(tile, whole(tiles), sizes, o))
            assert 0 <= cut <= end - begin
            steps = np.arange(start, start + end - begin)   # all of them at once
            around = steps >= end
            visited = steps - (end - begin) * around
            turns = turn_of(whole(visited), tile, whole(tiles), whole(end), Tensor(around, gl.int1),
                            wave, sizes, o)
            for at in zip(visited, around, np.broadcast_to(turns.data, steps.shape), strict=True):
                m, again, turn = map(int, at)
                assert turn == taken.get((int(head), again, m), 0), (N_Q, N_K, window, waves, number, m)
                taken[int(head), again, m] = turn + 1
        assert seen == set(itertools.product(range(heads), range(tiles)))


def test_the_passes_in_triton_do_what_their_twins_on_the_cpu_do():
    """In Triton's interpreter, in a process of its own: case → what differed."""
    found = run_once("-m", "tests.kernels.sums_cases")
    assert len(found) >= 12 and not {case: said for case, said in found.items() if said}
