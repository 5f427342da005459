"""Which tensors the Gluon kernel takes, in which configuration: decided on the host, without a GPU."""

import itertools

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton.experimental.gluon")

from flashlib.exp2 import LOG2E  # noqa: E402
from flashlib.kernels import configs, plans, scheduling  # noqa: E402
from flashlib.kernels.backends import choose, gluon  # noqa: E402
from flashlib.kernels.gluon.parts import registers_of  # noqa: E402
from flashlib.kernels.problem import CAUSAL, FULL, Device, Problem  # noqa: E402
from flashlib.masks import Window  # noqa: E402

pytestmark = pytest.mark.usefixtures("nothing_kept")


def half(*shape, dtype=torch.bfloat16):
    return torch.zeros(*shape, dtype=dtype)


GOOD = half(2, 4, 64, 64)


def refusal(q, k, v):
    return gluon.BACKEND.refusal(Problem.of(q, k, v), "forward")


@pytest.mark.parametrize("capability, words", [
    (None, "compute capability none"), ((8, 0), r"compute capability 8\.0"), ((10, 0), r"10\.0")])
def test_other_devices_are_refused(gpu, capability, words):
    gpu(*(capability or ()))
    reason = refusal(GOOD, GOOD, GOOD)
    assert reason.startswith("impl: 'gluon' expected a Hopper GPU (compute capability 9.0), got ")
    with pytest.raises(NotImplementedError, match=rf"^impl: 'gluon' .*{words}.*; use impl='auto'$"):
        choose(Problem.of(GOOD, GOOD, GOOD), "gluon", "forward")


@pytest.mark.parametrize("D, auto, asked", [
    (16, "triton", "gluon"), (64, "gluon", "gluon"), (128, "gluon", "gluon"),
    (130, "triton", "triton"), (136, "gluon", "gluon"), (256, "gluon", "gluon")])
def test_who_takes_its_backward(hopper, D, auto, asked):
    x = half(1, 2, 300, D)
    p = Problem.of(x, x, x, x, x)
    assert choose(p, "auto", "backward").name == auto
    assert choose(p, "gluon", "backward").name == asked
    assert choose(p, "triton", "backward").name == "triton"
    if D % 8:
        assert "the copy engine" in gluon.BACKEND.refusal(p, "backward")


@pytest.mark.parametrize("D, window, sums, waves", [
    (32, FULL, 2, (0, 1)), (64, FULL, 2, (0, 1)), (128, CAUSAL, 1, (0, 1)),
    (96, Window(9, 9), 1, (0, 1))])
def test_a_fused_backward_brings_its_grids(hopper, D, window, sums, waves):
    q, k = half(2, 6, 300, D), half(2, 3, 1000, D)
    p = Problem.of(q, k, k, q, q, window=window)
    made = plans.launches_for(gluon.BACKEND, p, "backward", None, False)
    assert list(made) == ["before", "fused", "after"]
    halves = 2 if D > 64 else 1
    assert made["before"].grid[0] == 2 * 6 * 5 and made["before"].arguments["SUMS"] == sums
    assert made["fused"].grid[0] == 2 * 3 * 8 and made["after"].grid[0] == 2 * 6 * 5 * halves
    found = made["fused"].arguments
    assert tuple(found[name] for name in ("IN_WAVES", "WAVE")) == waves
    assert found["RAGGED"] is True and found["GROUP"] == 2


H200 = Device("cuda", 0, (9, 0), 132, "NVIDIA H200")


@pytest.mark.parametrize("heads, group, N, D, waves", [
    (64, 1, 4096, 128, (3, 10, 1)), (16, 1, 16384, 128, (1, 2, 1)), (256, 1, 1024, 128, (9, 40, 1)),
    (128, 1, 4096, 64, (5, 20, 1)), (192, 1, 4096, 32, (9, 40, 1)), (8, 1, 4096, 128, (8, 8, 1)),
    (32, 1, 65536, 128, (8, 32, 1)), (2, 1, 65536, 128, (1, 2, 128)), (8, 4, 65536, 128, (8, 8, 1)),
    (8, 4, 8192, 128, (2, 8, 64)), (32, 4, 4096, 128, (4, 32, 32)), (64, 4, 2048, 128, (8, 64, 16)),
    (128, 4, 1024, 128, (1, 0, 1)), (32, 4, 6144, 128, (32, 32, 1)),
    (16, 7, 4096, 128, (16, 16, 1)), (1, 8, 4096, 128, (1, 1, 32)),
    (8, 4, 2**17, 128, (8, 8, 1)), (8, 4, 2**18, 128, (1, 0, 1))])
def test_heads_go_as_an_h200_was_fastest_with(heads, group, N, D, waves):
    """TOGETHER, IN_WAVES and WAVE, with a causal mask."""
    about = {"H": heads * group, "H_K": heads, "D": D, "dtype": torch.bfloat16, "device": H200}
    p = Problem.example(**about, N_Q=N, N_K=N, window=CAUSAL)
    assert scheduling.beside(p, D) == waves
    assert scheduling.beside(Problem.example(**about, N_Q=N, N_K=N), D)[1:] == (0, 1)
    if group > 1 and N > 1024:                              # most of what is seen is a rectangle
        p = Problem.example(**about, N_Q=N, N_K=2 * N, window=CAUSAL)
        assert (scheduling.beside(p, D) == (min(heads, 8), heads, 1)) == (N * group <= 32768)


@pytest.mark.parametrize("sms", [1, 78, 108, 132])
def test_waves_fill_the_sms_and_never_more(sms):
    for tiles, heads in itertools.product(range(1, 300), (1, 3, 8, 64)):
        beside, _, size = scheduling.wave(tiles, heads, sms)
        assert 1 <= size <= tiles and 1 <= beside <= heads and beside * size <= sms
        if heads == 64 and tiles >= sms > 1:
            assert beside * size >= 0.9 * sms


def test_a_backward_brings_its_grids_and_the_heads_that_go_together(hopper):
    q, k = half(2, 6, 300, 256), half(2, 3, 1000, 256)
    for window, together in ((FULL, (1, 1)), (CAUSAL, (6, 12))):
        p = Problem.of(q, k, k, q, q, window=window)
        made = plans.launches_for(gluon.BACKEND, p, "backward", None, False)
        assert list(made) == ["delta", "dkdv", "dq"]
        assert made["dkdv"].grid[0] == 2 * 3 * 16 and made["dq"].grid[0] == 2 * 6 * 3
        found = made["dkdv"].arguments, made["dq"].arguments
        assert tuple(x["TOGETHER"] for x in found) == together
        assert all((x["H"], x["GROUP"], x["N_Q"], x["N_K"]) == (6, 2, 300, 1000) for x in found)
        assert found[1]["RAGGED"] is True and "RAGGED" not in found[0]
        assert [x["LEFT"] for x in found] == [None, None]
    long = half(1, 8, 16384, 256)
    made = plans.launches_for(gluon.BACKEND, Problem.of(long, long, long, long, long, window=CAUSAL),
                              "backward", None, False)
    assert {made[part].arguments["TOGETHER"] for part in ("dkdv", "dq")} == {2}     # 16 MiB each


def test_a_gradient_that_the_copy_engine_cannot_read_is_made_contiguous(hopper, monkeypatch):
    q = half(1, 2, 128, 256)
    do = torch.ones((), dtype=q.dtype).expand(q.shape)      # as sum().backward() gives
    launched = {}
    monkeypatch.setattr(plans, "launches_for", lambda backend, p, *_: {
        part: lambda *tensors, part=part: launched.update({part: tensors})
        for part in ("delta", "dkdv", "dq")})
    p = Problem.of(q, q, q, q, do)
    gluon.BACKEND.backward(q, q, q, q, torch.zeros(1, 2, 128), do, None, p, 1.0)
    assert launched["dkdv"][3].is_contiguous() and launched["dq"][3] is launched["dkdv"][3]
    assert torch.equal(launched["dkdv"][3], do)


def with_stride(*stride):
    return half(8192 * 4).as_strided((1, 2, 16, 64), stride)


REFUSED = {                        # the tensors, words of the message
    "float32": (GOOD.float(), "expected float16 or bfloat16, got torch.float32"),
    "float64": (GOOD.double(), "expected float16 or bfloat16, got torch.float64"),
    "narrow D": (half(1, 1, 8, 8), "expected a head dimension D of at least 16, got 8"),
    "D of odd bytes": (half(1, 1, 8, 20), "as the copy engine reads them"),
    "D not contiguous": (half(1, 1, 64, 64).transpose(2, 3), "the last dimension contiguous"),
    "an odd row stride": (with_stride(2048, 1024, 68, 1), "multiples of 8 elements"),
    "an odd head stride": (with_stride(2048, 1028, 64, 1), "multiples of 8 elements"),
    "a stride of 0": (half(1, 1, 16, 64).expand(1, 2, 16, 64), "strides positive multiples"),
    "an odd address": (half(2 * 16 * 64 + 1)[1:].view(1, 2, 16, 64), "addresses of 16 bytes"),
}


@pytest.mark.parametrize("wrong", REFUSED)
def test_what_the_kernel_cannot_read_is_refused_by_name(hopper, wrong):
    x, words = REFUSED[wrong]
    reason = refusal(x, x, x)
    assert reason.startswith("impl: 'gluon' expected ") and words in reason
    with pytest.raises(NotImplementedError, match=r"^impl: 'gluon' expected .*; use impl='auto'$"):
        choose(Problem.of(x, x, x), "gluon", "forward")


@pytest.mark.parametrize("which", range(3))
def test_each_of_the_three_tensors_is_looked_at(hopper, which):
    tensors = [GOOD] * 3
    tensors[which] = half(2, 4, 64, 64).transpose(2, 3)
    assert "as the copy engine reads them" in refusal(*tensors)


@pytest.mark.parametrize("x", [
    GOOD, GOOD.half(), half(1, 1, 1, 16), half(1, 2, 5, 24), half(2, 16, 4, 64).transpose(1, 2),
    half(1, 2, 16, 128)[..., :64], with_stride(5, 1024, 64, 1),     # an axis of 1 has no stride
], ids=lambda x: f"{x.dtype}-{tuple(x.shape)}-{x.stride()}")
def test_what_it_can_read_is_taken(hopper, x):
    assert refusal(x, x, x) is None


@pytest.mark.parametrize("D, head_dim", [(16, 32), (17, 32), (32, 32), (33, 64), (64, 64), (72, 128),
                                         (128, 128), (136, 256), (256, 256)])
def test_ragged_keys_and_a_causal_mask_take_the_masked_entry(D, head_dim):
    free, masked = (configs.GLUON[head_dim, cut] for cut in (False, True))
    block = free.BLOCK_N
    few, ragged = {64: (configs.SHORT_64,) * 2,
                   128: (configs.SHORT_128, masked)}.get(head_dim, (masked, masked))
    fewer = few if head_dim == 128 else free
    for causal, N_K, entry in (
            (False, 1024, fewer), (False, 2048, free), (False, 2049, ragged), (False, 65_537, ragged),
            (False, block - 1, few), (True, 7, few), (True, 2048, few), (True, 2048 + block, masked),
            (True, 65_537, ragged)):
        assert configs.gluon_config_for(D, causal, N_K) is entry
    for entry in (masked, ragged):                          # or ragged would not mean the same to both
        assert block == entry.BLOCK_N


def test_few_rows_take_lower_tiles_whatever_the_keys(hopper):
    table, few = configs.GLUON[128, False], configs.SHORT_128
    for N_Q, causal, entry in ((1, False, few), (1024, False, few), (1025, False, table),
                               (2048, True, few), (2049, True, configs.GLUON[128, True])):
        assert configs.gluon_config_for(128, causal, 4096, N_Q) is entry
        q, k = half(1, 1, N_Q, 128), half(1, 1, 4096, 128)
        p = Problem.of(q, k, k, window=CAUSAL if causal else FULL)
        assert gluon.BACKEND.config(p, "forward") is entry
    assert configs.gluon_config_for(64, False, 4096, 1) is configs.GLUON[64, False]


def test_the_tables_hold_every_head_dimension_and_what_the_kernel_can_be():
    assert set(configs.GLUON) == set(itertools.product((32, 64, 128, 256), (False, True)))
    assert set(configs.FP8) == set(itertools.product((64, 128, 256), (False, True)))
    for config in (*configs.GLUON.values(), *configs.FP8.values(),
                   configs.SHORT_64, configs.SHORT_128):
        assert config.BLOCK_M == 64 * config.CONSUMERS and config.SPECIALIZED
        for head_dim in (32, 64, 128, 256):
            registers = registers_of(config.CONSUMERS, head_dim)
            cap = configs.REGISTERS[config.CONSUMERS]
            assert registers % 8 == cap % 8 == 0
            assert config.CONSUMERS * registers + 24 <= 512 >= (config.CONSUMERS + 1) * cap
    for config in configs.FP8.values():       # a key tile has one scale
        assert 128 % config.BLOCK_N == 0 and config.TAU == 0
    # 2**τ times the largest weight is far from float16's end, and float32 sums no more than N of them
    assert {config.TAU for config in configs.GLUON.values()} <= {0.0, 8.0}


@pytest.mark.parametrize("D, name", [(16, "triton"), (24, "gluon"), (128, "gluon")])
def test_auto_takes_the_kernel_where_it_was_faster(hopper, D, name):
    x = half(1, 1, 8, D)
    assert choose(Problem.of(x, x, x), "auto", "forward").name == name
    assert choose(Problem.of(x, x, x), "gluon", "forward").name == "gluon"


@pytest.mark.parametrize("persistent, causal", itertools.product((True, False), repeat=2))
def test_a_launch_brings_the_table_of_tiles(hopper, persistent, causal):
    q, k = half(2, 4, 300, 64), half(2, 2, 200, 64)
    p = Problem.of(q, k, k, window=CAUSAL if causal else FULL)
    config = gluon.BACKEND.config(p, "forward")._replace(PERSISTENT=persistent)
    launch = plans.launches_for(gluon.BACKEND, p, "forward", config)["forward"]
    tiles = -(-300 // config.BLOCK_M) * 8
    order = launch.tables["ORDER"]
    assert order.dtype == torch.int32 and order.is_contiguous()
    assert order.shape == (launch.grid[0], launch.arguments["ENTRIES"], 4)
    assert launch.grid == (4 if persistent else tiles, 1, 1) and order[:, 0, 0].sum() == tiles
    sizes = [launch.arguments[name] for name in ("H", "GROUP", "N_Q", "N_K")]
    assert sizes == [4, 2, 300, 200] and launch.arguments["RAGGED"]


def test_no_output_is_allocated_for_a_plan(hopper, monkeypatch):
    x = half(1, 1, 64, 64)
    monkeypatch.setattr(torch, "empty", lambda *a, **k: pytest.fail("allocated"))
    plans.launches_for(gluon.BACKEND, Problem.of(x, x, x), "forward")


def test_the_first_call_of_a_shape_inside_a_capture_is_refused_in_a_sentence(hopper, monkeypatch):
    x = half(1, 1, 77, 64)
    gluon._placed.cache_clear()
    monkeypatch.setattr(plans, "capturing", lambda: True)
    with pytest.raises(RuntimeError, match="a CUDA graph cannot capture the first call of a shape"):
        plans.launches_for(gluon.BACKEND, Problem.of(x, x, x), "forward")


def test_the_scale_zero_becomes_a_factor_that_is_seen_by_nobody():
    assert 0 < gluon.factor(0.0) < 1e-29 and gluon.factor(0.5) == pytest.approx(0.5 * LOG2E)


def test_fp8_takes_its_own_table(hopper):
    for (head_dim, causal), config in configs.FP8.items():
        x = half(1, 1, 128, head_dim).to(torch.float8_e4m3fn)
        p = Problem.of(x, x, x.transpose(2, 3), window=CAUSAL if causal else FULL)
        plan = gluon.FP8.plan(p, "forward", gluon.FP8.config(p, "forward"))["forward"]
        assert plan.kernel.fn.__name__ == "flash_fwd_fp8_kernel"
        assert plan.constants["STAGES"] == config.STAGES
        assert plan.blocks["v_desc"] == [1, 1, head_dim, config.BLOCK_N]


@pytest.mark.parametrize("wrong, words", [
    (dict(CONSUMERS=1), "CONSUMERS: expected an integer from 2 to 3, got 1"),
    (dict(BLOCK_N=48), "BLOCK_N: expected a power of 2 from 8 to 256, got 48"),
    (dict(TAU=9.0), r"TAU: expected a number from 0 to 8, got 9\.0"),
    (dict(PING_PONG=1), "PING_PONG: expected True or False, got 1"),
    (dict(CONSUMERS=3, SPECIALIZED=False), "CONSUMERS: expected 2 without SPECIALIZED, got 3"),
], ids=str)
def test_a_configuration_refuses_what_it_cannot_be(wrong, words):
    good = dict(BLOCK_N=128, CONSUMERS=2, STAGES=4)
    with pytest.raises(ValueError, match=f"^{words}"):
        configs.GluonConfig(**good | wrong)
    with pytest.raises(ValueError, match=f"^{words}"):
        configs.GluonConfig(**good)._replace(**wrong)
