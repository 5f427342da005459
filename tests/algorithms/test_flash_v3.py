"""FlashAttention v3 in FP8: what it shares with v2, how far eight bits lead it away, what it counts."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import flashlib as fl
from flashlib import quant
from flashlib.models import fp8, traffic
from tests import oracle
from tests.cases import PROPERTY, normal, qkv

pytest.importorskip("ml_dtypes")

EIGHT = {"dtype": "e4m3"}
either_mask = pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
every_option = pytest.mark.parametrize("options", [
    {}, {"block_scales": False}, {"rotation": False}, {"dtype": "e5m2"}, {"seed": 7},
    {"block_scales": False, "rotation": False}], ids=lambda o: "-".join(map(str, o)) or "default")


def relative(got, expected):
    return quant.relative_error(np.asarray(got, np.float64), expected)


@either_mask
@pytest.mark.parametrize("dtype", [np.float64, np.float32], ids=["f64", "f32"])
def test_without_fp8_it_is_v2_to_the_bit_and_the_byte(causal, dtype):
    Q, K, V = qkv(0, 50, 60, 11, dtype)                               # d = 11: nothing is rotated
    one, two = fl.Machine(), fl.Machine()
    got = fl.flash_v3(Q, K, V, Br=16, Bc=8, causal=causal, machine=one)
    expected = fl.flash_v2(Q, K, V, Br=16, Bc=8, causal=causal, machine=two)
    assert all(a.tobytes() == b.tobytes() for a, b in zip(got, expected, strict=True))
    assert one.traffic == two.traffic


@every_option
@either_mask
@pytest.mark.parametrize("Nq, Nk, d, Br, Bc", [(64, 64, 32, 16, 16), (97, 113, 64, 32, 17),
                                               (5, 300, 16, 2, 64), (1, 1, 1, 1, 1)])
def test_eight_bits_come_near_the_oracle(options, causal, Nq, Nk, d, Br, Bc):
    Q, K, V = qkv(Nq, Nq, Nk, d)
    if causal and Nk < Nq:
        return
    O, lse = fl.flash_v3(Q, K, V, Br=Br, Bc=Bc, causal=causal, **EIGHT | options)
    exact, exact_lse = oracle.attention(Q, K, V, causal=causal)
    worst = 0.25 if options.get("dtype") == "e5m2" else 0.125          # twice a mantissa's last bit
    assert relative(O, exact) < worst and (Nk == 1 or O.tobytes() != exact.tobytes())
    assert np.abs(lse - exact_lse).max() < worst


@pytest.mark.parametrize("dtype", [np.float64, np.float32], ids=["f64", "f32"])
def test_the_dtype_of_the_arrays_stays(dtype):
    O, lse = fl.flash_v3(*qkv(1, 40, 40, 16, dtype), Br=16, Bc=16, **EIGHT)
    assert O.dtype == lse.dtype == dtype


def test_operands_that_are_on_the_grid_come_out_exact():
    """One key per row of scale 1: nothing is lost, so that the only rounding left is that of P."""
    V = quant.values()[127:247:2].reshape(-1, 4)
    Q, K = np.zeros_like(V), np.ones_like(V)
    O, lse = fl.flash_v3(Q, K, V, Br=4, Bc=4, rotation=False, block_scales=False, **EIGHT)
    V8 = quant.quantise(V).dequantise()
    np.testing.assert_allclose(O, np.tile(V8.mean(axis=0), (len(V), 1)), rtol=1e-12)
    np.testing.assert_allclose(lse, np.log(len(V)), rtol=1e-12)


def test_the_mass_of_p_is_kept_within_its_rounding():
    Q, K, V = qkv(2, 64, 512, 32)
    O, _ = fl.flash_v3(4 * Q, K, np.ones_like(V), Br=16, Bc=64, **EIGHT)
    np.testing.assert_allclose(O, 1, atol=2**-5)
    assert np.abs(O - 1).mean() < 2**-8                                # ties and signs average out


@every_option
def test_multiplying_v_by_a_power_of_two_multiplies_o(options):
    Q, K, V = qkv(3, 40, 50, 16)
    run = {"Br": 16, "Bc": 16, **EIGHT, **options}
    one, other = fl.flash_v3(Q, K, V, **run), fl.flash_v3(Q, K, 1024 * V, **run)
    np.testing.assert_array_equal(1024 * one[0], other[0])
    np.testing.assert_array_equal(one[1], other[1])


@PROPERTY
@given(st.integers(0, 2**32 - 1), st.integers(-6, 6))
def test_q_and_k_may_share_a_power_of_two(seed, power):
    Q, K, V = qkv(seed, 9, 11, 8)
    run = {"Br": 4, "Bc": 4, **EIGHT}
    one, other = fl.flash_v3(Q, K, V, **run), fl.flash_v3(Q * 2.0**power, K / 2.0**power, V, **run)
    for a, b in zip(one, other, strict=True):
        np.testing.assert_array_equal(a, b)


def test_keys_of_one_block_may_change_places():
    Q, K, V = qkv(4, 24, 24, 16)
    order = np.concatenate([np.random.default_rng(n).permutation(8) + 8 * n for n in range(3)])
    run = {"Br": 8, "Bc": 8, **EIGHT}
    for a, b in zip(fl.flash_v3(Q, K, V, **run), fl.flash_v3(Q, K[order], V[order], **run),
                    strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14)


def test_nan_and_infinity_never_reach_a_row_that_may_not_see_them():
    Q, K, V = qkv(5, 24, 24, 16)
    clean = fl.flash_v3(Q, K, V, Br=8, Bc=8, causal=True, **EIGHT)
    for bad in (np.nan, np.inf):
        K2, V2 = K.copy(), V.copy()
        K2[16:], V2[16:] = bad, bad                                    # a block boundary
        O, lse = fl.flash_v3(Q, K2, V2, Br=8, Bc=8, causal=True, **EIGHT)
        np.testing.assert_array_equal(O[:16], clean[0][:16])
        np.testing.assert_array_equal(lse[:16], clean[1][:16])
        K2, V2 = K.copy(), V.copy()
        K2[13:], V2[13:] = bad, bad                                    # inside of a diagonal block
        O, _ = fl.flash_v3(Q, K2, V2, Br=8, Bc=8, causal=True, **EIGHT)
        assert np.isfinite(O[:13]).all() and np.abs(O[:13] - clean[0][:13]).max() < 0.2
        assert np.isnan(O[13:]).all()                  # seen, it shows: rotated, ∞ − ∞ is NaN


def test_a_later_key_moves_a_row_through_the_scale_of_its_block_only():
    """The docstring's warning, shown: the same block moves it a little, another one not at all."""
    Q, K, V = qkv(6, 16, 16, 16)
    run = {"Br": 8, "Bc": 8, "causal": True, **EIGHT}
    before = fl.flash_v3(Q, K, V, **run)[0]
    far, near = K.copy(), K.copy()
    far[12], near[5] = 33.0, 33.0
    np.testing.assert_array_equal(fl.flash_v3(Q, far, V, **run)[0][:8], before[:8])
    moved = np.abs(fl.flash_v3(Q, near, V, **run)[0][:5] - before[:5]).max()
    assert 0 < moved < 0.2


def test_rows_that_see_nothing():
    O, lse = fl.flash_v3(*qkv(7, 11, 4, 8), Br=3, Bc=3, causal=True, **EIGHT)
    assert not O[:7].any() and (lse[:7] == -np.inf).all() and np.isfinite(lse[7:]).all()
    for Nq, Nk in ((0, 5), (5, 0), (0, 0)):
        O, lse = fl.flash_v3(*qkv(7, Nq, Nk, 8), Br=3, Bc=3, **EIGHT)
        assert O.shape == (Nq, 8) and not O.any() and (lse == -np.inf).all()


def test_logits_of_ten_thousand_and_scales_of_every_sign():
    Q, K, V = qkv(8, 20, 20, 8)
    O, lse = fl.flash_v3(100 * Q, 100 * K, V, Br=8, Bc=8, scale=1.0, **EIGHT)
    assert np.isfinite(O).all() and np.abs(lse).max() > 1e4
    O, lse = fl.flash_v3(Q, K, V, Br=8, Bc=8, scale=0.0, **EIGHT)
    np.testing.assert_allclose(O, np.tile(V.mean(axis=0), (20, 1)), atol=0.1)
    np.testing.assert_allclose(lse, np.log(20), rtol=1e-12)
    for a, b in zip(fl.flash_v3(Q, K, V, Br=8, Bc=8, scale=-0.7, **EIGHT),
                    fl.flash_v3(-Q, K, V, Br=8, Bc=8, scale=0.7, **EIGHT), strict=True):
        np.testing.assert_array_equal(a, b)


def test_it_does_what_the_model_of_the_error_table_says():
    """The tiled page and the dense model round in the same places: the same error, nearly."""
    p = fp8.problem(*(fp8.outliers((512, 64), seed=n) for n in range(3)))
    for recipe in fp8.TABLE_3[3:]:
        O, _ = fl.flash_v3(p.Q, p.K, p.V, Br=128, Bc=128, block_scales=recipe.block is not None,
                           rotation=recipe.rotation, **EIGHT)
        tiled, dense = fl.numerics.rmse(O, p.O), fp8.error(p, recipe)
        assert tiled == pytest.approx(dense, rel=0.1)
        assert fl.numerics.rmse(O, fp8.outputs(p, recipe)) < 0.5 * dense


def test_a_rotation_of_q_alone_would_be_seen():
    Q, K, V = qkv(9, 30, 30, 16)
    signs = quant.random_signs(16)
    got, _ = fl.flash_v3(quant.rotate(3 * Q, signs), K, V, Br=8, Bc=8, rotation=False, **EIGHT)
    assert relative(got, oracle.attention(3 * Q, K, V)[0]) > 0.5


# accounting

@pytest.mark.parametrize("chunk", range(6))
def test_it_counts_its_closed_form(chunk):
    rng = random.Random(chunk)
    for _ in range(100):
        longest = rng.choice([3, 9, 17])
        shape = dict(Nq=rng.randint(0, longest), Nk=rng.randint(0, longest), d=rng.choice([1, 2, 4, 8]),
                     causal=rng.random() < 0.6, Br=rng.randint(1, 13), Bc=rng.randint(1, 13))
        sizes = dict(element_bytes=rng.randint(1, 8), stats_bytes=rng.randint(1, 8),
                     accumulator_bytes=rng.randint(1, 8))
        Q, K, V = (np.zeros((shape[n], shape["d"])) for n in ("Nq", "Nk", "Nk"))
        options = {n: shape[n] for n in ("causal", "Br", "Bc")}
        form = traffic.flash_v3(**shape, **sizes, fp8=True)
        for block_scales in (True, False):
            machine = fl.Machine(**sizes, record=False)
            fl.flash_v3(Q, K, V, machine=machine, block_scales=block_scales, **options, **EIGHT)
            assert machine.traffic == form, (shape, sizes)
        peak = form.sram_peak_bytes
        if peak:
            fl.flash_v3(Q, K, V, machine=fl.Machine(peak, **sizes), **options, **EIGHT)
            with pytest.raises(fl.SRAMOverflow):
                fl.flash_v3(Q, K, V, machine=fl.Machine(peak - 1, **sizes), **options, **EIGHT)


def test_bytes_written_out():
    """The formula of the docstring: one byte for Q, K, V, two for O, four for scales and lse."""
    N, d, Br, Bc = 60, 16, 16, 8
    machine = fl.Machine(element_bytes=1)
    fl.flash_v3(*qkv(0, N, N, d), Br=Br, Bc=Bc, machine=machine, **EIGHT)
    Tr, Tc = 4, 8
    assert machine.traffic.hbm_read_bytes == N * d + 2 * N * d * Tr + 4 * (Tr + 2 * Tc * Tr)
    assert machine.traffic.hbm_write_bytes == 2 * N * d + 4 * N
    sixteen = traffic.flash_v2(Nq=4096, Nk=4096, d=128, Br=128, Bc=128)
    eight = traffic.flash_v3(Nq=4096, Nk=4096, d=128, Br=128, Bc=128, element_bytes=1, fp8=True)
    assert 0.5 < eight.hbm_bytes / sixteen.hbm_bytes < 0.52


# refusals

@pytest.mark.parametrize("changes, error, message", [
    ({"dtype": "fp8"}, ValueError, "dtype: expected one of .*got 'fp8'"),
    ({"dtype": "int8"}, ValueError, "dtype: expected one of .*got 'int8'"),
    ({"block_scales": 1}, TypeError, "block_scales: expected True or False, got 1"),
    ({"rotation": "yes"}, TypeError, "rotation: expected True or False, got 'yes'"),
    ({"seed": -1}, ValueError, "seed: expected a whole number of at least 0, got -1"),
    ({"seed": None}, TypeError, "seed: expected a whole number, got None"),
])
def test_wrong_options_are_refused_before_anything_moves(changes, error, message):
    machine = fl.Machine()
    with pytest.raises(error, match=f"^{message}"):
        fl.flash_v3(*normal(0, (4, 4), (4, 4), (4, 4)), Br=2, Bc=2, machine=machine,
                    **EIGHT | changes)
    assert machine.traffic == fl.Traffic()


def test_a_d_that_is_no_power_of_two_is_refused_with_a_remedy():
    Q, K, V = qkv(0, 8, 8, 40)
    with pytest.raises(ValueError, match="expected a power of two, got 40: pad with zeros to 64"):
        fl.flash_v3(Q, K, V, Br=4, Bc=4, **EIGHT)
    O, _ = fl.flash_v3(Q, K, V, Br=4, Bc=4, rotation=False, **EIGHT)
    padded = [np.pad(a, ((0, 0), (0, 24))) for a in (Q, K, V)]
    P, _ = fl.flash_v3(*padded, Br=4, Bc=4, scale=40**-0.5, **EIGHT)
    exact, _ = oracle.attention(Q, K, V)
    assert relative(O, exact) < 0.1 and relative(P[:, :40], exact) < 0.1


def test_rounding_on_the_machine_counts_one_flop_an_element_and_saturates():
    machine = fl.Machine()
    x = machine.hbm(x=np.array([[0.3, 1e6, -5.1]]))
    y = machine.hbm_empty("y", (1, 3), kind="half")
    with machine.kernel("round") as sram:
        sram.store(sram.load(x).rounded("e4m3"), y)
    np.testing.assert_array_equal(y.to_host(), [[0.3125, 448, -5]])
    assert machine.traffic.vector_flops == 3 and machine.traffic.hbm_write_bytes == 2 * 3
    with machine.kernel("round") as sram, pytest.raises(ValueError, match="fmt: expected one of"):
        sram.load(x).rounded("e3m4")


def test_blocks_beyond_every_length_are_one_block():
    Q, K, V = qkv(11, 9, 12, 8)
    expected = fl.flash_v3(Q, K, V, Br=9, Bc=12, **EIGHT)
    for a, b in zip(fl.flash_v3(Q, K, V, Br=2**40, Bc=2**40, **EIGHT), expected, strict=True):
        np.testing.assert_array_equal(a, b)
