"""What is done to Q, K and V before the FP8 kernel: rotation, rounding, and the order of keys."""

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from flashlib.kernels import fp8  # noqa: E402

HALF_ULP = 2.0**-4                                          # relative: e4m3 keeps 3 bits of a fraction
SMALLEST = 2.0**-9                                          # below 2⁻⁶ the steps are this wide
LENGTHS = (1, 15, 16, 31, 32, 127, 128, 129, 300)


def normal(*shape, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def back(x8, scale):
    """Return the numbers that 8 bits and a scale stand for, in float64."""
    return x8.double() * scale.double()


def require_rounded(x, x8, scale):
    """Raise AssertionError unless x8 · scale is x, rounded to the nearest e4m3 number."""
    x, scale = x.double(), scale.double()
    bound = torch.maximum(HALF_ULP * x.abs(), SMALLEST / 2 * scale)
    gap = (back(x8, scale) - x).abs()
    assert (gap <= bound * (1 + 1e-5)).all(), f"{(gap / bound).max()} of the bound"


def row_scales(scale, N):
    """Return one scale for each row, (B, H, N, 1)."""
    return scale.repeat_interleave(fp8.BLOCK_ROWS, -1)[..., :N, None]


@pytest.mark.parametrize("d", [1, 2, 32, 64, 128, 256])
def test_a_hadamard_matrix_is_orthogonal_and_flat(d):
    H = fp8.hadamard(d, "cpu").double()
    assert H.shape == (d, d)
    assert torch.allclose(H @ H.T, torch.eye(d, dtype=torch.float64), atol=1e-6)
    assert torch.allclose(H.abs(), torch.full_like(H, d**-0.5), atol=1e-6)


@given(st.sampled_from([32, 64, 128, 256]), st.integers(0, 2**31), st.integers(0, 9))
def test_a_rotation_of_both_keeps_their_products(d, seed, signs):
    q, k = normal(2, 3, 5, d, seed=seed), normal(2, 3, 7, d, seed=seed + 1)
    rotated = [fp8.rotate(x, signs).double() for x in (q, k)]
    expected = q.double() @ k.double().transpose(-1, -2)
    size = q.double().norm(dim=-1)[..., :, None] * k.double().norm(dim=-1)[..., None, :]
    assert ((rotated[0] @ rotated[1].transpose(-1, -2) - expected).abs() <= 1e-6 * size).all()


def test_a_rotation_spreads_an_outlier_and_different_signs_do_not_cancel():
    x = torch.zeros(1, 64)
    x[0, 5] = 8.0
    assert torch.allclose(fp8.rotate(x).abs(), torch.ones(1, 64), atol=1e-6)
    q = normal(4, 64)
    expected = q @ q.T
    assert not torch.allclose(fp8.rotate(q, 0) @ fp8.rotate(q, 1).T, expected, atol=0.5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_a_rotation_takes_16_bits_and_returns_float32(dtype):
    x = normal(3, 64, dtype=dtype)
    assert fp8.rotate(x).dtype == torch.float32
    assert torch.equal(fp8.rotate(x), fp8.rotate(x.float()))


@pytest.mark.parametrize("per_block", [True, False])
@pytest.mark.parametrize("N", LENGTHS)
def test_rows_come_back_within_half_a_step(N, per_block):
    x = normal(2, 3, N, 32, seed=N) * torch.logspace(-3, 3, N)[:, None]
    x8, scale = fp8.quantize_rows(x, per_block)
    assert x8.shape == x.shape and x8.dtype == torch.float8_e4m3fn
    assert scale.shape == (2, 3, -(-N // 128)) and scale.dtype == torch.float32
    assert scale.is_contiguous()
    require_rounded(x, x8, row_scales(scale, N))
    assert x8.double().abs().amax() == fp8.E4M3_MAX         # the largest is used
    if per_block:
        for i in range(0, N, 128):
            assert (x8[:, :, i:i + 128].double().abs().amax((-1, -2)) == fp8.E4M3_MAX).all()
    else:
        assert (scale == scale.flatten()[0]).all()


@pytest.mark.parametrize("per_block", [True, False])
@pytest.mark.parametrize("N", LENGTHS)
def test_values_come_back_within_half_a_step(N, per_block):
    v = normal(2, 3, N, 32, seed=N) * torch.logspace(-3, 3, 32)
    v8, scale = fp8.quantize_values(v, per_block)
    padded = -(-N // 32) * 32
    assert v8.shape == (2, 3, 32, padded) and v8.is_contiguous() and v8.dtype == torch.float8_e4m3fn
    assert scale.shape == (2, 3, 32) and scale.is_contiguous()
    place = fp8.permute_keys(torch.arange(padded)[:, None])[:, 0]
    rows = torch.empty(2, 3, padded, 32, dtype=torch.float64)
    rows[:, :, place] = v8.double().transpose(-1, -2)       # each key back where it was
    assert (rows[:, :, N:] == 0).all()
    require_rounded(v, rows[:, :, :N], scale[:, :, None])


def test_zeros_stay_zeros():
    x = torch.zeros(1, 2, 40, 64)
    for x8, scale in (fp8.quantize_rows(x), fp8.quantize_values(x)):
        assert (x8.double() == 0).all() and (scale > 0).all() and scale.isfinite().all()


def test_an_outlier_costs_its_own_block_only():
    x = normal(1, 1, 256, 64)
    x[0, 0, 3, 3] = 1e6
    error = [((back(x8, row_scales(scale, 256)) - x)[0, 0, 128:].norm() / x[0, 0, 128:].norm()).item()
             for x8, scale in (fp8.quantize_rows(x, True), fp8.quantize_rows(x, False))]
    assert error[0] < 0.03 < 0.9 < error[1]


def accumulator_columns(t):
    """Return the columns of 16 that a thread holds of a row of a product, in register order.

    PTX ISA, wgmma with a float32 accumulator: thread t of four has 8j + 2t and 8j + 2t + 1.
    """
    return [8 * j + 2 * t + b for j in (0, 1) for b in (0, 1)]


def operand_columns(t):
    """Return the columns of 16 that a thread must hold of a row of an 8-bit left operand, in order.

    PTX ISA, wgmma with 8-bit types: four neighbours, one register.
    """
    return [4 * t + byte for byte in range(4)]


def test_permuted_keys_are_in_the_documented_order():
    given = torch.arange(48)[:, None]
    moved = fp8.permute_keys(given)[:, 0].tolist()
    for block in range(3):
        for j in (0, 1):
            for t in range(4):
                for b in (0, 1):
                    assert moved[16 * block + 4 * t + 2 * j + b] == 16 * block + 8 * j + 2 * t + b


def test_permuted_keys_fit_the_registers():
    """A thread renames its registers; where it says column c of P, row c of V must be that key."""
    moved = fp8.permute_keys(torch.arange(16)[:, None])[:, 0].tolist()
    for t in range(4):
        for has, says in zip(accumulator_columns(t), operand_columns(t), strict=True):
            assert moved[says] == has
    assert sorted(moved) == list(range(16)) != moved


def test_a_product_of_renamed_registers_and_permuted_keys_is_the_product():
    S, V = normal(64, 128, dtype=torch.float64), normal(128, 32, seed=1, dtype=torch.float64)
    P = torch.full_like(S, float("nan"))
    for block in range(0, 128, 16):
        for t in range(4):
            for has, says in zip(accumulator_columns(t), operand_columns(t), strict=True):
                P[:, block + says] = S[:, block + has]
    assert torch.allclose(P @ fp8.permute_keys(V), S @ V, rtol=1e-12, atol=1e-12)
    assert not torch.allclose(P @ V, S @ V)


@pytest.mark.parametrize("options", [{}, {"rotation": False}, {"per_block": False}], ids=str)
def test_prepared_tensors_stand_for_attention(options):
    """Ragged lengths, grouped heads: QKᵀ and V come back to a few per cent."""
    q, k, v = (normal(2, H, N, 64, seed=i, dtype=torch.bfloat16)
               for i, (H, N) in enumerate(((4, 130), (2, 77), (2, 77))))
    (q8, sq), (k8, sk), (v8, sv) = fp8.prepare(q, k, v, **options)
    q1, k1 = back(q8, row_scales(sq, 130)), back(k8, row_scales(sk, 77))
    got = q1 @ k1.repeat_interleave(2, 1).transpose(-1, -2)
    expected = q.double() @ k.double().repeat_interleave(2, 1).transpose(-1, -2)
    assert (got - expected).norm() / expected.norm() < 0.05
    assert v8.shape == (2, 2, 64, 96)
    total = (v8.double() * sv.double()[..., None]).sum(-1)  # over all keys: in whatever order
    assert (total - v.double().sum(-2)).norm() / v.double().norm() < 0.05


@pytest.mark.parametrize("scale", [None, 0.3, -0.3, 0.0])
def test_a_negative_scale_turns_q_around(scale, monkeypatch, hopper):
    """The kernel takes the maximum of raw logits, so that its factor must not be negative."""
    pytest.importorskip("triton.experimental.gluon")
    from flashlib.kernels.backends import gluon

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    given, told = [], {}

    def prepare(q, k, v, **options):
        given.append(q)
        return q, k, v

    def forward(q, k, v, **options):
        told.update(options)
        return q, None

    monkeypatch.setattr(fp8, "prepare", prepare)
    monkeypatch.setattr(gluon.FP8, "forward", forward)
    q = normal(1, 2, 8, 64, dtype=torch.bfloat16)
    fp8.flash_attention_fp8(q, q, q, scale=scale, causal=True)
    sign = -1.0 if scale is not None and scale < 0 else 1.0
    assert torch.equal(given[0], sign * q)
    assert told == {"causal": True, "dtype": torch.bfloat16,
                    "scale": 64**-0.5 if scale is None else abs(scale)}


def test_autocast_and_a_lazy_minus_change_nothing_of_what_is_prepared():
    q, k, v = (normal(1, 2, 130, 64, seed=seed, dtype=torch.bfloat16) for seed in range(3))
    expected = fp8.prepare(q, k, v)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = fp8.prepare(q, k, v)
    lazy = fp8.prepare(*(torch._neg_view(-x) for x in (q, k, v)))
    for got in (inside, lazy):
        for (x8, scale), (y8, right) in zip(got, expected, strict=True):
            assert not x8.is_neg() and torch.equal(x8.float(), y8.float()) and torch.equal(scale, right)
