"""The Gluon kernels themselves, run on the CPU by the interpreter: accuracy, counts, orders, switch."""

import itertools

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton.experimental.gluon")

from triton import knobs  # noqa: E402

import flashlib  # noqa: E402
from flashlib.interpreter import Hazard, orders, run  # noqa: E402
from flashlib.kernels import configs, plans  # noqa: E402
from flashlib.kernels.backends import gluon  # noqa: E402
from flashlib.kernels.gluon.meanings import meaning_of  # noqa: E402
from flashlib.kernels.problem import Problem  # noqa: E402
from flashlib.masks import visits, window_of  # noqa: E402
from flashlib.models.folding import state_bytes  # noqa: E402
from tests.kernels.budget import cancellation_floor, score  # noqa: E402
from tests.kernels.problems import NAMES, Shape, dense, problem, solve  # noqa: E402

HALVES = (torch.float16, torch.bfloat16)


@pytest.fixture(autouse=True)
def switched_on(monkeypatch):
    """Set the switch that TRITON_INTERPRET sets, and forget what was decided without it."""
    plans.forget()
    monkeypatch.setattr(knobs.runtime, "interpret", True)
    yield
    plans.forget()


def require_right(got, given, names):
    """Hold results against float64 by the accuracy rule."""
    expected, plain = dense(given), dense(given, given.q.dtype)
    for name, x, y, z in zip(("O", "lse", "dQ", "dK", "dV"), got, expected, plain, strict=False):
        if name in names:
            if name == "lse":
                torch.testing.assert_close(x.double(), y, rtol=1e-5, atol=1e-5)
            else:
                result = score(x, y, z, floor=cancellation_floor(given))
                assert result.ratio <= 1, f"{name}: {result.error:.2e} > {result.allowed:.2e}"


def forward(given, config=None):
    """Return O and lse of the Gluon kernel, in the table's configuration or another."""
    p = Problem.of(*given[:3], window=window_of(given.causal, given.window))
    assert gluon.BACKEND.refusal(p, "forward") is None
    scale = given.q.shape[3] ** -0.5 if given.scale is None else given.scale
    return gluon.BACKEND.forward(*given[:3], p, scale, config)


SHAPES = [(1, 2, 2, 70, 70), (2, 4, 2, 130, 200), (1, 3, 1, 65, 333), (1, 1, 1, 300, 100),
          (1, 1, 1, 1, 500), (1, 2, 1, 200, 1), (1, 1, 1, 256, 256)]
MASKS = [(False, None), (True, None), (False, (40, 10)), (False, (0, 0)), (False, (None, 30))]


@pytest.mark.parametrize("D", [24, 32, 40, 64, 128, 256])
@pytest.mark.parametrize("causal, window", MASKS)
def test_the_forward_is_right_on_every_shape(D, causal, window):
    """Where 32 divides D, the test of the backward holds O and lse of the first four problems."""
    for seed, shape in enumerate(SHAPES):
        if D % 32 == 0 and seed < 4:
            continue
        given = problem(Shape(*shape, D, causal, window), HALVES[(seed + D // 8) % 2], seed=seed)
        require_right(forward(given), given, ("O", "lse"))


@pytest.mark.parametrize("D, mask", [(32, MASKS[0]), (64, MASKS[1]), (128, MASKS[2]), (256, MASKS[1])])
def test_sinks_are_right_forward_and_backward(D, mask):
    """One of −∞ among them; under the causal mask some rows see no key."""
    for seed, (Nq, Nk) in enumerate(((130, 90), (70, 200))):
        given = problem(Shape(2, 4, 2, Nq, Nk, D, *mask), HALVES[seed], seed=seed)._replace(
            sink=torch.tensor([2.0, -3.0, -torch.inf, 6.0]))
        got = solve(given, lambda q, k, v, **o: flashlib.flash_attention(q, k, v, impl="gluon", **o))
        require_right(got, given, NAMES)
        # A sum over rows of dO ∘ O, 16 bits wide; plainly computed, its RMS error is thrice ours.
        expected, plain = dense(given)[-1], dense(given, given.q.dtype)[-1].double()
        band = torch.finfo(given.q.dtype).eps * expected.abs().max()
        allowed = 1.25 * (plain - expected).abs().max() + band
        assert (got[-1] - expected).abs().max() <= allowed


ENTRIES = {**configs.GLUON, "short 64": configs.SHORT_64, "short 128": configs.SHORT_128}


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("tau, ping_pong, overlap, under", [
    (None, True, True, True), (0.5, True, True, False),
    *(pytest.param(*switches, marks=pytest.mark.more)
      for switches in ((0.0, False, True, True), (8.0, True, False, True)))])
def test_every_entry_of_the_tables_is_right_with_its_switches(entry, tau, ping_pong, overlap, under):
    config = ENTRIES[entry]
    D = entry[0] if isinstance(entry, tuple) else int(entry.split()[1])
    causal = entry[1] if isinstance(entry, tuple) else False
    config = config._replace(PING_PONG=ping_pong, OVERLAP=overlap, UNDER_SOFTMAX=under and overlap)
    if tau is not None:
        config = config._replace(TAU=tau)
    given = problem(Shape(1, 5, 5, 130, 300, D, causal), torch.float16)
    require_right(forward(given, config), given, ("O", "lse"))


@pytest.mark.parametrize("D", [64, 128])
@pytest.mark.parametrize("emulated", [1, 2])
def test_the_cubic_that_stands_in_for_exponentials_is_near_enough(D, emulated):
    given = problem(Shape(1, 1, 1, 130, 300, D), torch.bfloat16)
    config = configs.GLUON[D, False]._replace(EMULATED=emulated)
    require_right(forward(given, config)[:1], given, ("O",))


@pytest.mark.parametrize("overlap, causal", itertools.product((True, False), repeat=2))
def test_the_kernel_without_warp_specialisation_is_right(overlap, causal):
    given = problem(Shape(1, 2, 1, 200, 300, 64, causal), torch.float16)
    config = configs.GluonConfig(64, 2, 3, SPECIALIZED=False, OVERLAP=overlap)
    require_right(forward(given, config), given, ("O", "lse"))


@pytest.mark.parametrize("D", [64, 128, 256])
@pytest.mark.parametrize("causal", [False, True])
def test_the_kernel_in_8_bits_is_as_near_as_8_bits_are(D, causal):
    for N_Q, N_K in ((130, 200), (300, 300)):
        given = problem(Shape(1, 2, 1, N_Q, N_K, D, causal), torch.bfloat16)
        o = flashlib.kernels.flash_attention_fp8(*given[:3], causal=causal)
        right = dense(given)[0]
        assert (o - right).norm() <= 0.08 * right.norm()


def arguments_of(given, config=None):
    """Return (kernel, grid, arguments by name) of the forward."""
    q, k, v = given[:3]
    p = gluon.on_hopper(Problem.of(q, k, v, window=window_of(given.causal, given.window)))
    launch = plans.launches_for(gluon.BACKEND, p, "forward", config)["forward"]
    lse, o = torch.zeros(q.shape[:3]), torch.zeros_like(q)
    values = launch.bound(q, k, v, o, lse, gluon.factor(q.shape[3] ** -0.5), None)
    kernel = launch.plan.kernel
    return kernel.kernel, launch.grid[0], dict(zip(kernel.arg_names, values, strict=True))


@pytest.mark.parametrize("D, causal, window", [
    (64, False, None), (64, True, None), (128, False, (50, 9)), (256, True, None), (32, False, None),
    (80, True, None), (192, False, (50, 9))])
def test_every_order_gives_the_same_bits(D, causal, window):
    given = problem(Shape(1, 3, 1, 200, 300, D, causal, window), torch.bfloat16)
    kernel, grid, arguments = arguments_of(given)
    runs = orders(kernel, grid, arguments, ("o_desc", "LSE"), seeds=range(4), meanings=meaning_of)
    assert len(runs) == 6 and len({tuple(sorted(r.counts.items())) for r in runs}) == 1


# D → columns over which logits are summed, and columns of O that are made; else those of the tile.
COLUMNS = {48: (48, 64), 80: (80, 96), 112: (128, 128), 144: (144, 192), 168: (192, 192)}


def closed_form(given, config):
    """Return what the forward moves, multiplies and exponentiates, from its tiles and masks."""
    (B, H, N_Q, D), N_K = given.q.shape, given.k.shape[2]
    width, rows, keys = gluon.head_dim_of(Problem.of(*given[:3])), config.BLOCK_M, config.BLOCK_N
    mask = window_of(given.causal, given.window)
    lengths = [max(1, int(n)) for n in visits(mask, N_Q, N_K, rows, keys)]
    tiles = B * H * sum(lengths)
    summed, made = COLUMNS.get(D, (width, width))
    return {"loaded q_desc": B * H * N_Q * D * 2, "stored o_desc": B * H * N_Q * D * 2,
            "flops": 2 * rows * keys * (summed + made) * tiles}


@pytest.mark.parametrize("seed", range(25))
def test_counts_equal_the_closed_forms(seed):
    import random

    draw = random.Random(seed)
    D, (causal, window) = draw.choice((32, 64, 128, 256, *COLUMNS)), draw.choice(MASKS)
    N_Q, N_K, H_K = draw.randint(1, 400), draw.randint(1, 400), draw.choice((1, 2))
    given = problem(Shape(1, 2, H_K, N_Q, N_K, D, causal, window), torch.float16)
    p = gluon.on_hopper(Problem.of(*given[:3], window=window_of(causal, window)))
    config = gluon.BACKEND.config(p, "forward")
    kernel, grid, arguments = arguments_of(given)
    counts = run(kernel, grid, arguments, meanings=meaning_of).counts
    expected = closed_form(given, config)
    assert {name: counts[name] for name in expected if name != "flops"} == {
        name: value for name, value in expected.items() if name != "flops"}
    assert counts["loaded k_desc"] == counts["loaded v_desc"]
    # one product more for each program and consumer, whose result nobody reads
    summed, _ = COLUMNS.get(D, 2 * (gluon.head_dim_of(p),))
    spare = 2 * 64 * config.BLOCK_N * summed * config.CONSUMERS * grid
    assert counts["flops"] == expected["flops"] + spare


@pytest.mark.parametrize("D, window", [(40, None), (128, (None, 9)), (256, None)])
def test_a_state_is_read_once_and_written_once(D, window):
    given = problem(Shape(1, 2, 1, 150, 200, D, False, window), torch.float16)
    o, lse = torch.full(given.q.shape, torch.nan), torch.full(given.q.shape[:3], -torch.inf)
    p = gluon.on_hopper(Problem.of(*given[:3], o, window=window_of(False, window), into=True))
    launch = plans.launches_for(gluon.BACKEND, p, "forward")["forward"]
    values = launch.bound(*given[:3], o, lse, gluon.factor(D ** -0.5), None)
    kernel = launch.plan.kernel
    counts = run(kernel.kernel, launch.grid[0], dict(zip(kernel.arg_names, values, strict=True)),
                 meanings=meaning_of).counts
    assert counts["loaded o_desc"] == counts["stored o_desc"] == state_bytes(2 * 150, D).o
    require_right((o.half(), lse), given, ("O", "lse"))


def test_without_the_switch_the_refusal_names_it(monkeypatch):
    monkeypatch.setattr(knobs.runtime, "interpret", False)
    plans.forget()
    x = torch.zeros(1, 1, 8, 64, dtype=torch.float16)
    with pytest.raises(NotImplementedError, match=r"impl: 'gluon' on CPU tensors.*TRITON_INTERPRET=1"):
        flashlib.flash_attention(x, x, x, impl="gluon")


def test_what_it_does_not_know_is_refused_with_the_line():
    given = problem(Shape(1, 1, 1, 70, 70, 64), torch.float16)
    kernel, grid, arguments = arguments_of(given)
    with pytest.raises(Hazard, match=r"softmax\.py:\d+: the interpreter knows no meaning of this PTX"):
        run(kernel, grid, arguments)
