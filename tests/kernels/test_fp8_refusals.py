"""FP8 attention says no before any launch, and why."""

import pytest

torch = pytest.importorskip("torch")

from flashlib.kernels import flash_attention_fp8  # noqa: E402


def tensors(D=64, N=8, dtype=torch.bfloat16):
    return [torch.randn(1, 2, N, D, dtype=dtype) for _ in range(3)]


def test_the_cpu_is_refused():
    with pytest.raises(NotImplementedError, match=r"q: FP8 attention expected .* Hopper GPU, got cpu"):
        flash_attention_fp8(*tensors())


@pytest.mark.parametrize("given, message", [
    (tensors(dtype=torch.float32), "q: FP8 attention expected float16 or bfloat16, got torch.float32"),
    (tensors(D=32), r"q: FP8 attention expected a head dimension D of 64, 128, 256, got 32"),
    (tensors(N=0), "q, k: FP8 attention expected at least one row each"),
    ([x.requires_grad_() for x in tensors()], "q, k, v: FP8 attention is for inference"),
], ids=["float32", "D", "empty", "gradient"])
def test_what_it_does_not_compute_is_refused(hopper, given, message):
    pytest.importorskip("triton")
    with pytest.raises(NotImplementedError, match=message):
        flash_attention_fp8(*given)


def test_bad_shapes_are_refused_as_in_flash_attention():
    q, k, v = tensors()
    with pytest.raises(ValueError, match="v: expected the shape of k"):
        flash_attention_fp8(q, k, v[:, :, :4])
    with pytest.raises(ValueError, match="scale: expected a finite number"):
        flash_attention_fp8(q, k, v, scale=float("nan"))


def test_a_tangent_is_refused(hopper):
    pytest.importorskip("triton")
    from torch.autograd import forward_ad

    q, k, v = tensors()
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(q, torch.ones_like(q))
        with pytest.raises(NotImplementedError, match="FP8 attention is for inference"):
            flash_attention_fp8(dual, k, v)
