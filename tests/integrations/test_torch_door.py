"""torch's own door on a CPU: what stands in for ATen's operators, for the CPU in the place of CUDA."""

import types
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import flashlib.integrations.torch as door  # noqa: E402
from tests.kernels import gpu_checks_doors  # noqa: E402
from tests.kernels.gpu_checks import ALONE, Where  # noqa: E402
from tests.mutants.edits import edited  # noqa: E402

attention = torch.nn.attention
HERE = Where("reference", "cpu")
ATEN = torch.ops.aten
pytestmark = pytest.mark.skipif(not hasattr(attention, "register_flash_attention_impl"),
                                reason=f"torch {torch.__version__} has no such door")


@pytest.fixture
def opened():
    with gpu_checks_doors.opened("cpu"):
        yield


@pytest.mark.parametrize("name", [name for name in ALONE if name.startswith("doors")])
def test_what_a_gpu_checks_holds_here_too(name):
    assert isinstance(ALONE[name](HERE), str)


def test_torch_lists_it_and_goes_back():
    name = door.register("course's own")
    assert name in attention.list_flash_attention_impls()
    assert attention.current_flash_attention_impl() is None
    attention.activate_flash_attention_impl(name)
    assert attention.current_flash_attention_impl() == name
    attention.restore_flash_attention_impl()
    assert attention.current_flash_attention_impl() is None
    assert door.register() == "flashlib"


def test_what_was_installed_is_gone_when_it_is_removed():
    q = torch.randn(1, 2, 4, 8)
    handle = door.install("CPU")
    ATEN._scaled_dot_product_flash_attention(q, q, q)
    handle.remove()
    with pytest.raises(NotImplementedError, match="Could not run"):
        ATEN._scaled_dot_product_flash_attention(q, q, q)


def test_each_operator_of_atens_is_taken_over(opened):
    """Of all flash attention for GPUs: so that a forward of ours never meets a backward of torch's."""
    theirs = {name for name in dir(ATEN) if "flash_attention" in name} | {
        str(name).split(".")[0].removeprefix("aten::") for name in torch._C._dispatch_get_all_op_names()
        if "_flash_attention" in name and name.startswith("aten::")}
    theirs = {name for name in theirs if not name.endswith(("for_cpu", "for_cpu_backward",
                                                            "overrideable",
                                                            "overrideable_backward"))
              and "fused" not in name and "quantized" not in name}
    ours = {name for name in theirs if hasattr(door, name)}
    assert ours == theirs and len(ours) >= 4


def test_dense_queries_of_flash_attention_itself(opened):
    """(B, N, H, D), with a window, which SDPA never asks for."""
    q, k, v = (torch.randn(2, N, H, 16, requires_grad=True) for N, H in ((7, 4), (9, 2), (9, 2)))
    o, lse, *_ = ATEN._flash_attention_forward(q, k, v, None, None, 7, 9, 0.0, True, False, scale=0.3,
                                               window_size_left=3, window_size_right=0)
    given = gpu_checks_doors.Problem(*(x.transpose(1, 2) for x in (q, k, v, torch.ones_like(q))), None,
                                     True, 0.3,
                                     (3, 0))
    expected = gpu_checks_doors.dense(given)
    got = o, lse, *torch.autograd.grad(o.sum(), (q, k, v))
    for x, y in zip(got, expected, strict=True):
        assert torch.allclose(x.double(), y if x.ndim == 3 else y.transpose(1, 2), atol=1e-5)


def test_the_variant_that_writes_into_a_tensor(opened):
    if not hasattr(ATEN, "_flash_attention_forward_no_dropout_inplace"):
        pytest.skip("this torch has no such operator")
    q, out = torch.randn(2, 5, 16), torch.full((2, 5, 16), torch.nan)
    q, out = q.transpose(0, 1), out.transpose(0, 1)
    cu = torch.tensor([0, 5], dtype=torch.int32)
    lse = ATEN._flash_attention_forward_no_dropout_inplace(out, q, q, q, cu, cu, 5, 5, 0.0, False,
                                                           False)
    o, expected, *_ = ATEN._flash_attention_forward(q, q, q, cu, cu, 5, 5, 0.0, False, False)
    assert torch.equal(out, o) and torch.equal(lse, expected) and lse.shape == (2, 5)


@pytest.mark.parametrize("name, given", [
    ("dropout_p", ((), {"dropout_p": 0.1})), ("return_debug_mask", ((), {"return_debug_mask": True}))])
def test_what_the_op_has_not_is_refused_by_name(opened, name, given):
    q = torch.randn(1, 2, 4, 8)
    with pytest.raises(NotImplementedError, match=rf"^{name}: "):
        ATEN._scaled_dot_product_flash_attention(q, q, q, *given[0], **given[1])


def test_values_of_another_width_are_refused(opened):
    """Their gradients ATen would ask for by themselves."""
    q, v, cu = torch.randn(4, 2, 8), torch.randn(4, 2, 7), torch.tensor([0, 4], dtype=torch.int32)
    with pytest.raises(NotImplementedError, match=r"^value: expected the head dimension of query"):
        ATEN._flash_attention_forward(q, q, v, cu, cu, 4, 4, 0.0, False, False)
    with pytest.raises(NotImplementedError, match=r"^value: expected the head dimension of query"):
        ATEN._scaled_dot_product_flash_attention(q[None], q[None], v[None])


def test_slopes_and_a_cache_without_lengths_are_refused(opened):
    q, cu = torch.randn(4, 2, 8), torch.tensor([0, 4], dtype=torch.int32)
    for name, value in (("alibi_slopes", torch.ones(2)),
                        ("block_table", torch.zeros(1, 1, dtype=torch.int32))):
        with pytest.raises(NotImplementedError, match=name):
            ATEN._flash_attention_forward(q, q, q, cu, cu, 4, 4, 0.0, False, False, **{name: value})


def test_a_compiled_model_meets_the_shapes_and_strides_that_torch_promised(opened):
    """What torch's fake tensors say of the operators is what ours return."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    q, k = (torch.randn(2, 7, H, 16).transpose(1, 2) for H in (4, 2))
    real = ATEN._scaled_dot_product_flash_attention(q, k, k, 0.0, True)
    grads = ATEN._scaled_dot_product_flash_attention_backward(q, q, k, k, *real[:2], *real[2:6], 0.0,
                                                              True,
                                                              *real[6:8])
    with FakeTensorMode() as mode:
        fq, fk = (mode.from_tensor(x) for x in (q, k))
        fake = ATEN._scaled_dot_product_flash_attention(fq, fk, fk, 0.0, True)
        fake_grads = ATEN._scaled_dot_product_flash_attention_backward(fq, fq, fk, fk, *fake[:2],
                                                                       *fake[2:6], 0.0,
                                                                       True, *fake[6:8])
    for x, y in zip((*real, *grads), (*fake, *fake_grads), strict=True):
        if isinstance(y, torch.Tensor):
            assert (x.shape, x.dtype, x.stride()) == (y.shape, y.dtype, y.stride())
        else:
            assert x == y


def test_a_torch_without_the_door_is_told_so(monkeypatch):
    monkeypatch.delattr(attention, "register_flash_attention_impl")
    with pytest.raises(NotImplementedError, match="has no register_flash_attention_impl"):
        door.register()
    with pytest.raises(TypeError, match=r"^name: "):
        door.register(3)


MUTANTS = {                                                 # old, new, check
    "causal is not passed on": ("causal=is_causal, scale", "causal=False, scale", "sdpa"),
    "O is not laid out as the query": ("_laid_out(o, query), lse, None", "o, lse, None", "sdpa"),
    "gradients are not laid out as their tensors": ("_laid_out(dx, x) for dx, x in zip(found, (q,",
                                                    "dx for dx, x in zip(found, (q,", "sdpa"),
    "keys and values change places": ("ops.backward(q, k, v", "ops.backward(q, v, k", "sdpa"),
    "−1 bounds as 0 does": ("side is None or side < 0 else int(side)",
                            "side is None else max(int(side), 0)", "varlen"),
    "the backward forgets the window": ("_window(is_causal, **sides)", "_window(is_causal)", "varlen"),
    "queries lie at the front": ("(sequence + 1) * max_q", "(sequence + 1) * 0 + sequence * max_q"
                                 " + counts[sequence]", "cached"),
    "lengths of the cache are not looked at": ("lengths=seqused_k", "lengths=None", "cached"),
    "every sequence has the first one's slot": ("cum_seq_k[:-1, None] +", "cum_seq_k[:-1, None] * 0 +",
                                                "cached"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_seen(name, monkeypatch):
    old, new, check = MUTANTS[name]
    planted = types.ModuleType("planted")
    exec(edited(Path(door.__file__).read_text(encoding="utf-8"), ((old, new),)), planted.__dict__)
    monkeypatch.setattr(gpu_checks_doors, "door", planted)
    with pytest.raises(AssertionError):
        ALONE[f"doors_{check}"](HERE)
