"""What is asked of a model with our attention: what it computes with its own eager attention.

Each case takes two models of the same weights and returns the largest difference, relative to the
largest value.
"""

import torch

from tests.integrations.families import padding, tokens

N = 13                                                      # longer than two windows and two chunks
MASKS = {"plain": None, "left": padding(N, N, 8, side="left"), "right": padding(N, N, 8, side="right")}
DOCUMENTS = torch.cat([torch.arange(4), torch.arange(1), torch.arange(8)])[None].expand(2, -1)


def _off(expected, got) -> float:
    """Return the largest difference of pairs of tensors, relative to the largest value expected."""
    pairs = list(zip(expected, got, strict=True))
    assert pairs and all(bool(torch.isfinite(x).all()) for x, _ in pairs)
    if any(y is None or not torch.isfinite(y).all() for _, y in pairs):
        return float("inf")
    return max(float((x - y).abs().max() / x.abs().max().clamp(min=1e-6)) for x, y in pairs)


def _forward(mask=None, **more):
    def case(eager, ours):
        real = slice(None) if mask is None else mask.bool()
        with torch.no_grad():
            return _off(*([m(tokens(2, N), attention_mask=mask, **more).logits[real]] for m in (eager,
                                                                                                ours)))
    return case


def _backward(mask=None, **more):
    def case(eager, ours):
        labels = tokens(2, N)
        if mask is not None:                                # a row of padding predicts nothing
            before = torch.nn.functional.pad(mask, (1, 0))[:, :-1]
            labels = labels.masked_fill(mask * before == 0, -100)
        found = []
        for model in (eager, ours):
            model.train()
            model.zero_grad()
            model(tokens(2, N), attention_mask=mask, labels=labels, **more).loss.backward()
            found.append([x.grad for x in model.parameters() if x.grad is not None])
            model.eval()
        return _off(*found)
    return case


def _parts(mask=None):
    """Return the case of a prompt that comes in two parts, through the model's cache."""
    def case(eager, ours):
        found = []
        for model in (eager, ours):
            cache, logits = None, []
            for start, stop in ((0, 9), (9, N)):
                seen = None if mask is None else mask[:, :stop]
                with torch.no_grad():
                    out = model(tokens(2, N)[:, start:stop], attention_mask=seen, past_key_values=cache,
                                use_cache=True)
                cache = out.past_key_values
                logits.append(out.logits if mask is None else out.logits[mask[:, start:stop].bool()])
            found.append(logits)
        return _off(*found)
    return case


def _generate(mask=None, **more):
    def case(eager, ours):
        found = []
        for model in (eager, ours):
            out = model.generate(tokens(2, N), attention_mask=mask, max_new_tokens=6, do_sample=False,
                                 return_dict_in_generate=True, output_logits=True, **more)
            found.append(out)
        if not torch.equal(*(out.sequences for out in found)):
            return float("inf")
        return _off(*(out.logits for out in found))
    return case


CASES = {
    **{name: _forward(mask) for name, mask in MASKS.items()},
    "documents": _forward(position_ids=DOCUMENTS, use_cache=False),
    **{f"backward-{name}": _backward(mask) for name, mask in MASKS.items()},
    "backward-documents": _backward(position_ids=DOCUMENTS, use_cache=False),
    "parts": _parts(), "parts-left": _parts(MASKS["left"]),
    "generate": _generate(), "generate-left": _generate(MASKS["left"]),
    "static": _generate(cache_implementation="static"),
    "static-left": _generate(MASKS["left"], cache_implementation="static"),
}
