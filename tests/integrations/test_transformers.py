"""Tiny models of eight families compute with our attention what they do with their own eager one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

os.environ["HF_HUB_OFFLINE"] = "1"
transformers = pytest.importorskip("transformers",
                                   reason="`make test-transformers` installs transformers")

import flashlib.integrations.transformers as door  # noqa: E402
from flashlib.integrations import described  # noqa: E402
from tests.integrations.cases import CASES, MASKS, N  # noqa: E402
from tests.integrations.families import CONFIGS, model_of, padding, tokens  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
MOST = 1e-5                                                 # of the largest value, as for one call


@pytest.fixture(scope="module", autouse=True)
def registered():
    return door.register()


@pytest.fixture(scope="module")
def models():
    made = {}

    def pair(family):
        if family not in made:
            made[family] = model_of(family), model_of(family, door.NAME)
        return made[family]
    return pair


@pytest.mark.parametrize("family", CONFIGS)
@pytest.mark.parametrize("case", CASES)
def test_a_model_computes_what_it_did(models, family, case):
    assert CASES[case](*models(family)) <= MOST


def calls(monkeypatch):
    """Return what is called, by name, and with how many keys; it grows."""
    true = {name: getattr(described, name)
            for name in ("flash_attention", "flash_attention_varlen", "_decode")}
    made = []
    for name in true:
        def call(q, k, *rest, name=name, **options):
            made.append((name, k.shape[0 if name.endswith("varlen") else 2]))
            return true[name](q, k, *rest, **options)
        monkeypatch.setattr(described, name, call)
    return made


def test_without_padding_the_op_is_called_as_it_is(models, monkeypatch):
    made = calls(monkeypatch)
    models("llama")[1](tokens(2, N))
    assert made == [("flash_attention", N)] * 2


def test_padded_sequences_are_packed_and_padding_costs_nothing(models, monkeypatch):
    made = calls(monkeypatch)
    models("llama")[1](tokens(2, N), attention_mask=MASKS["left"])
    assert made == [("flash_attention_varlen", N + 8)] * 2


def test_in_a_static_cache_no_shape_grows_from_step_to_step(models, monkeypatch):
    """A prompt leaves out the room; a token has its length as a tensor, and no gradient."""
    made, ours = calls(monkeypatch), models("llama")[1]
    cache = transformers.StaticCache(ours.config, max_cache_len=20)
    for start, stop in ((0, N), (N, N + 1), (N + 1, N + 2)):
        with torch.no_grad():
            ours(tokens(2, N + 2)[:, start:stop], past_key_values=cache)
    assert made == [("flash_attention", N)] * 2 + [("_decode", 20)] * 4
    cache = transformers.StaticCache(ours.config, max_cache_len=20)
    ours(tokens(2, 3), past_key_values=cache).logits.sum().backward()
    assert made[6:] == [("flash_attention", 3)] * 2


def test_without_a_mask_function_transformers_would_drop_padding_in_silence(models):
    """The trap: a name that is registered for attention only gets no mask at all."""
    transformers.AttentionInterface.register("bare", door.attend)
    eager, ours = models("llama")
    bare = model_of("llama", "bare")
    assert CASES["left"](eager, bare) > 1e-2
    assert CASES["left"](eager, ours) <= MOST
    assert CASES["plain"](eager, bare) <= MOST, "without padding it looks right"


def test_rows_of_padding_stay_finite_whatever_they_hold(models):
    """One NaN there would reach real rows as 0 · NaN in the next layer."""
    for family in CONFIGS:
        with torch.no_grad():
            assert models(family)[1](tokens(2, N), attention_mask=MASKS["left"]).logits.isfinite().all()


def test_a_sequence_of_padding_alone_disturbs_nobody(models):
    mask = padding(N, N, 0, side="left")
    eager, ours = models("llama")
    with torch.no_grad():
        one, both = eager(tokens(2, N)[:1]).logits, ours(tokens(2, N), attention_mask=mask).logits
    assert both.isfinite().all() and (one[0] - both[0]).abs().max() <= MOST * one.abs().max()


def test_an_encoder_sees_both_ways():
    """BERT: no causal mask; rows of padding are computed, too, as a cross attention needs them."""
    config = transformers.BertConfig(vocab_size=100, hidden_size=32, num_hidden_layers=2,
                                     num_attention_heads=4,
                                     intermediate_size=48)
    found = []
    for name in ("eager", door.NAME):
        torch.manual_seed(0)
        model = transformers.AutoModel.from_config(config, attn_implementation=name).eval()
        with torch.no_grad():
            found += [[model(tokens(2, N),
                             attention_mask=mask).last_hidden_state for mask in MASKS.values()]]
    assert max(float((x - y).abs().max()) for x, y in zip(*found, strict=True)) <= MOST


@pytest.mark.parametrize("D_v", [8, 15])
def test_values_may_be_narrower_than_keys_or_wider(D_v):
    """As in DeepSeek's latent attention; the gradient goes through the padding."""
    q, k, v = (torch.randn(2, 4, 9, D, dtype=torch.float64, requires_grad=True) for D in (12, 12, D_v))
    layer = torch.nn.Module()
    o, weights = door.attend(layer, q, k, v, None, scaling=0.3)
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3)
    assert weights is None and o.shape == (2, 9, 4, D_v) and o.is_contiguous()
    assert torch.allclose(o.transpose(1, 2), expected, atol=1e-12)
    got, wanted = (torch.autograd.grad(x.sum(), (q, k, v)) for x in (o, expected))
    assert all(torch.allclose(x, y, atol=1e-12) for x, y in zip(got, wanted, strict=True))


def attend(**more):
    q = torch.randn(2, 4, N, 8)
    return door.attend(torch.nn.Module(), q, q, q, more.pop("attention_mask", None), **more)


@pytest.mark.parametrize("argument, value", [
    ("dropout", 0.1), ("position_bias", torch.zeros(1, 4, N, N)), ("head_mask", torch.ones(4)),
    ("output_attentions", True), ("cache", object()), ("block_table", torch.zeros(2, 3)),
    ("cu_seq_lens_q", torch.tensor([0, 5, N])), ("attention_mask",
                                              torch.ones(2, 1, N, N, dtype=torch.bool)),
    ("attention_mask", torch.ones(2, N))])
def test_what_the_op_has_not_is_refused_by_name(argument, value):
    with pytest.raises(NotImplementedError, match=rf"^{argument}: "):
        attend(**{argument: value})


@pytest.mark.parametrize("argument, value", [("dropout", 0.0), ("output_attentions", False),
                                             ("position_bias", None), ("use_cache", True)])
def test_an_argument_that_asks_for_nothing_passes(argument, value):
    attend(**{argument: value})


def test_a_window_without_a_mask_needs_a_direction():
    with pytest.raises(NotImplementedError, match=r"^sliding_window: "):
        attend(sliding_window=4, is_causal=False)
    attend(sliding_window=4, is_causal=True)


def test_dropout_in_training_is_refused_in_a_model(models):
    model = model_of("llama", door.NAME)
    model.model.layers[0].self_attn.attention_dropout = 0.1
    model(tokens(1, 4))
    with pytest.raises(NotImplementedError, match=r"^dropout: there is no dropout"):
        model.train()(tokens(1, 4))


def test_a_mask_of_ones_own_is_refused_in_a_model(models):
    with pytest.raises(NotImplementedError, match=r"^attention_mask: .* flex_attention|sdpa"):
        models("llama")[1](tokens(2, N), attention_mask=torch.ones(2, 1, N, N).tril().bool())


@pytest.mark.parametrize("name, error", [("flashlib", ValueError), ("", ValueError), (3, TypeError)])
def test_a_name_that_transformers_would_not_take_is_refused(name, error):
    with pytest.raises(error, match=r"^name: "):
        door.register(name)


def test_another_name_may_name_a_backend(models):
    door.register("course", impl="reference")
    model = model_of("llama", "course")
    assert CASES["left"](models("llama")[0], model) <= MOST


def test_a_model_changes_over_and_back(models):
    model = model_of("mistral")
    with torch.no_grad():
        before = model(tokens(2, N)).logits
        model.set_attn_implementation(door.NAME)
        ours = model(tokens(2, N)).logits
        model.set_attn_implementation("eager")
        assert torch.equal(model(tokens(2, N)).logits, before) and not torch.equal(ours, before)


def test_a_compiled_model_computes_the_same(models):
    """The mask is read outside of the graph, attention is an operator in it."""
    eager, ours = models("llama")
    compiled = torch.compile(ours, backend="aot_eager")
    assert CASES["plain"](eager, compiled) <= MOST and CASES["left"](eager, compiled) <= MOST


def test_the_kernels_themselves_in_tritons_interpreter():
    """Windows, sinks, a padded batch, forward and backward, and a static cache; in a new process."""
    pytest.importorskip("triton")
    code = """
import json
import flashlib.integrations.transformers as door
from tests.integrations.cases import CASES
from tests.integrations.families import model_of
models = model_of("gpt_oss"), model_of("gpt_oss", door.register("interpreted", impl="triton"))
print(json.dumps([CASES[case](*models) for case in ("backward-left", "documents", "static")]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300,
                          env=os.environ | {"TRITON_INTERPRET": "1"}, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert max(json.loads(done.stdout)) <= MOST
