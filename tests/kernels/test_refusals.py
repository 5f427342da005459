"""Wrong inputs to `flash_attention`: refused before any launch, by name, with expected and got."""

import warnings

import pytest

torch = pytest.importorskip("torch")

from flashlib.kernels import flash_attention, ops  # noqa: E402


def ones(*shape, dtype=torch.float32, **options):
    return torch.ones(*shape, dtype=dtype, **options)


def nested():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.nested.nested_tensor([torch.ones(2, 3, 4)])


GOOD = ones(2, 4, 5, 8)
HALF = GOOD.half()
META = ones(2, 4, 5, 8, device="meta")
WRONG = {                          # what changes, the error, its message
    "a list": ({"q": [[1.0]]}, TypeError, "q: expected a torch.Tensor, got list"),
    "none": ({"v": None}, TypeError, "v: expected a torch.Tensor, got NoneType"),
    "a NumPy array": ({"k": GOOD.numpy()}, TypeError, "k: expected a torch.Tensor, got ndarray"),
    "nested": ({"q": nested()}, TypeError, "q: expected a dense tensor, got a nested tensor"),
    "sparse": ({"k": GOOD.to_sparse()}, TypeError, "k: expected a dense tensor, got torch.sparse_coo"),
    "2-D": ({"q": ones(5, 8)}, ValueError, r"q: expected 4 dimensions .* got shape \(5, 8\)"),
    "3-D": ({"v": ones(4, 5, 8)}, ValueError, r"v: expected 4 dimensions .* got shape \(4, 5, 8\)"),
    "5-D": ({"k": GOOD[None]}, ValueError, r"k: expected 4 dimensions .* got shape \(1, 2, 4, 5, 8\)"),
    "mixed dtypes": ({"k": HALF}, TypeError,
                     "q, k, v: expected one dtype, got torch.float32, torch.float16, torch.float32"),
    "mixed devices": ({"v": META}, ValueError, "q, k, v: expected one device, got cpu, cpu, meta"),
    "integers": ({n: GOOD.int() for n in "qkv"}, TypeError, "q: expected float16.* got torch.int32"),
    "booleans": ({n: GOOD.bool() for n in "qkv"}, TypeError, "q: expected float16.* got torch.bool"),
    "complex": ({n: GOOD + 0j for n in "qkv"}, TypeError, "q: expected float16.* got torch.complex64"),
    "fp8": ({n: GOOD.to(torch.float8_e4m3fn) for n in "qkv"}, TypeError,
            "q: expected float16.* got torch.float8_e4m3fn"),
    "D of k": ({"k": ones(2, 4, 5, 7)}, ValueError, "k: expected head dimension 8 as in q, got 7"),
    "D of k and v": ({n: ones(2, 4, 5, 7) for n in "kv"}, ValueError, "k: expected head dimension 8"),
    "N of v": ({"v": ones(2, 4, 6, 8)}, ValueError, r"v: expected the shape of k.* got \(2, 4, 6, 8\)"),
    "H of v": ({"v": ones(2, 2, 5, 8)}, ValueError, r"v: expected the shape of k.* got \(2, 2, 5, 8\)"),
    "B of v": ({"v": ones(1, 4, 5, 8)}, ValueError, r"v: expected the shape of k.* got \(1, 4, 5, 8\)"),
    "B": ({n: ones(1, 4, 5, 8) for n in "kv"}, ValueError,
          r"k, v: expected batch size 2 as in q, got 1; use k.expand\(2, \.\.\.\)"),
    "B of q": ({"q": ones(1, 4, 5, 8)}, ValueError,
               "k, v: expected batch size 1 as in q, got 2$"),
    "heads": ({n: ones(2, 3, 5, 8) for n in "kv"}, ValueError,
              "q: expected a number of heads that 3, the heads of k, divides, got 4"),
    "more key heads": ({n: ones(2, 8, 5, 8) for n in "kv"}, ValueError,
                       "q: expected a number of heads that 8, .* got 4"),
    "no heads": ({n: ones(2, 0, 5, 8) for n in "qkv"}, ValueError,
                 "q, k: expected at least one head, got 0 and 0"),
    "no key heads": ({n: ones(2, 0, 5, 8) for n in "kv"}, ValueError,
                     "q, k: expected at least one head, got 4 and 0"),
    "no D": ({n: ones(2, 4, 5, 0) for n in "qkv"}, ValueError,
             "q: expected a head dimension D of at least 1, got 0"),
    "D 257": ({n: ones(1, 1, 1, 257) for n in "qkv"}, NotImplementedError,
              "q: expected a head dimension D of at most 256, got 257"),
    "scale nan": ({"scale": float("nan")}, ValueError, "scale: expected a finite number, got nan"),
    "scale infinite": ({"scale": -float("inf")}, ValueError, "scale: expected a finite .* got -inf"),
    "scale beyond floats": ({"scale": 10**400}, ValueError, "scale: expected a finite .* got 1000"),
    "scale too large": ({"scale": 1e38}, ValueError, r"scale: expected at most 1e\+15 in size.*1e\+38"),
    "scale too low": ({"scale": -2e15}, ValueError, r"scale: expected at most 1e\+15 in size"),
    "scale a text": ({"scale": "1"}, TypeError, "scale: expected a number or None, got '1'"),
    "scale complex": ({"scale": 1j}, TypeError, "scale: expected a number or None, got 1j"),
    "scale a flag": ({"scale": True}, TypeError, "scale: expected a number or None, got True"),
    "scale a tensor": ({"scale": torch.ones(())}, TypeError, "scale: expected a number or None, got t"),
    "causal a number": ({"causal": 1}, TypeError, "causal: expected True or False, got 1"),
    "causal none": ({"causal": None}, TypeError, "causal: expected True or False, got None"),
    "window a number": ({"window": 3}, TypeError, r"window: expected None or \(left, right\).* got 3"),
    "window of one": ({"window": (3,)}, TypeError, r"window: expected None or .* got \(3,\)"),
    "window of three": ({"window": (3, 0, 1)}, TypeError, r"window: .* got \(3, 0, 1\)"),
    "window a text": ({"window": "ab"}, TypeError, "window: expected None or .* got 'ab'"),
    "window negative": ({"window": (-1, 0)}, ValueError,
                        "window: expected for left a whole number from 0 or None, got -1"),
    "window negative right": ({"window": (3, -1)}, ValueError, "window: expected for right .* got -1"),
    "window a flag": ({"window": (True, 0)}, TypeError, "window: expected for left .* got True"),
    "window a float": ({"window": (3, 0.0)}, TypeError, "window: expected for right .* got 0.0"),
    "window with causal": ({"window": (3, -2), "causal": True}, ValueError, "window: .* right .* -2"),
    "return_lse a text": ({"return_lse": "no"}, TypeError, "return_lse: expected True or .* got 'no'"),
    "impl": ({"impl": "cuda"}, ValueError, r"impl: expected one of \('auto', .*\), got 'cuda'"),
    "impl none": ({"impl": None}, ValueError, "impl: expected one of .* got None"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_arguments_are_refused_before_any_launch(wrong, monkeypatch):
    changes, error, message = WRONG[wrong]
    monkeypatch.setattr(ops, "choose", lambda *a: pytest.fail("it came to a launch"))
    with pytest.raises(error, match=f"^{message}"):
        flash_attention(**{"q": GOOD, "k": GOOD, "v": GOOD} | changes)


def test_float64_is_refused_on_a_gpu(monkeypatch):
    class OnGPU(torch.Tensor):
        is_cuda = True

    x = GOOD.double().as_subclass(OnGPU)
    with pytest.raises(TypeError, match=r"^q: .*float64 on the CPU only\), got torch.float64"):
        flash_attention(x, x, x)


@pytest.mark.parametrize("name, hint", [
    ("is_causal", r"did you mean causal=\? It aligns bottom right"), ("sm_scale", "mean scale="),
    ("enable_gqa", "leave it out"), ("attn_mask", "no mask but causal="), ("dropout_p", "no dropout"),
    ("window_size", r"did you mean window=\(left, right\)")])
def test_an_argument_of_others_is_refused_with_what_is_meant(name, hint):
    with pytest.raises(TypeError, match=f"^flash_attention.* unexpected keyword .*'{name}': .*{hint}"):
        flash_attention(GOOD, GOOD, GOOD, **{name: True})


def test_an_unknown_argument_is_refused_as_python_does():
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'colour'$"):
        flash_attention(GOOD, GOOD, GOOD, colour=1)


@pytest.mark.parametrize("scale", [1e15, -1e15])
def test_the_largest_scale_gives_finite_numbers(scale):
    x = torch.full((1, 1, 3, 256), 65504.0, dtype=torch.float16)
    x[:, :, 1:] *= -1
    assert flash_attention(x, x, x, scale=scale).isfinite().all()


def test_keywords_are_keywords():
    with pytest.raises(TypeError, match="positional"):
        flash_attention(GOOD, GOOD, GOOD, True)


@pytest.mark.parametrize("good", [{"scale": 1}, {"scale": 0}, {"scale": None}, {"causal": True},
                                  {"window": (1, None)}, {"window": [0, 2]}, {"impl": "reference"},
                                  {"return_lse": True}], ids=str)
def test_what_is_right_is_taken(good):
    assert flash_attention(GOOD, GOOD, GOOD, **good) is not None


def test_numpy_scalars_are_numbers():
    import numpy as np

    assert torch.equal(flash_attention(GOOD, GOOD, GOOD, scale=np.float64(0.5)),
                       flash_attention(GOOD, GOOD, GOOD, scale=0.5))


def test_gradients_in_a_batch_are_refused_by_name():
    x = GOOD.clone().requires_grad_()
    o = flash_attention(x, x, x)
    with pytest.raises(NotImplementedError, match=r"no is_grads_batched; use torch\.func"):
        torch.autograd.grad(o, x, torch.ones(3, *o.shape), is_grads_batched=True)


def test_a_scale_too_small_for_a_float_is_none():
    x = torch.randn(1, 1, 3, 8)
    assert torch.equal(flash_attention(x, x, x, scale=1e-40), flash_attention(x, x, x, scale=0))
