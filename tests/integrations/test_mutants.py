"""Bugs planted in the door to transformers, each of which a named case must see."""

import functools
import os
import types

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"
pytest.importorskip("transformers", reason="`make test-transformers` installs transformers")

import flashlib.integrations.transformers as door
from flashlib.integrations import described
from tests.integrations.cases import CASES
from tests.integrations.families import model_of
from tests.mutants.edits import edited

MOST, LEAST = 1e-5, 1e-3                                    # what is right, and what counts as seen
MUTANTS = {                                                 # module, old, new, family, case
    "a window of one key more": (described, 'held["sliding_window"] - 1, None',
                                 'held["sliding_window"], None', "mistral", "plain"),
    "a window of one key less": (described, 'held["sliding_window"] - 1, None',
                                 'held["sliding_window"] - 2, None', "gemma3", "plain"),
    "no window": (described, 'self._bound(held["sliding_window"] - 1, None)', "pass", "gemma2",
                  "backward-plain"),
    "no causal mask": (described, "self._bound(None, 0)", "pass", "qwen3", "plain"),
    "causal is aligned top left in a cache with room": (described, "slice(0, last)",
                                                        "slice(0, q_length)", "llama", "static"),
    "room of a cache is attended to": (described, "slice(0, last)", "slice(0, kv_length)", "llama",
                                       "static"),
    "one key too many of a cache counts": (described, "(batch_size,), last", "(batch_size,), last + 1",
                                           "llama", "static"),
    "padding of a window's cache is read from the front": (
        described, "[:, kv_offset:kv_offset + kv_length]", "[:, :kv_length]", "gemma3",
        "generate-left"),
    "sinks are forgotten": (door, '"sink": s_aux', '"sink": None', "gpt_oss", "plain"),
    "softcap is forgotten": (door, '"softcap": softcap', '"softcap": None', "gemma2", "plain"),
    "scaling is ignored": (door, "scale=scaling", "scale=None", "gemma2", "plain"),
    "heads of a group are repeated in the wrong order": (
        described, "flash_attention(q, k[:, :, self.run], v[:, :, self.run], **options)",
        "flash_attention(q, k[:, :, self.run].repeat(1, q.shape[1] // k.shape[1], 1, 1),"
        " v[:, :, self.run].repeat(1, q.shape[1] // v.shape[1], 1, 1), **options)", "llama", "plain"),
    "O is not transposed": (described, "o.transpose(1, 2).contiguous()",
                            "o.contiguous().view(o.shape[0], o.shape[2], o.shape[1], o.shape[3])",
                            "gpt2", "plain"),
    "padding is not looked at": (described, "found.masked_fill(~real, -1)", "found", "llama", "left"),
    "queries of a later part are taken for the first": (described, "labels[:, first:]",
                                                        "labels[:, :q_length]", "llama", "parts-left"),
    "rows are put back one late": (described, "index_copy(0, rows, o)",
                                   "index_copy(0, (rows + 1).clamp(max=B * N - 1), o)", "mistral",
                                   "right"),
    "sequences of a batch run into one another": (described, "x + b * most", "x", "llama", "left"),
    "documents are not kept apart": (described, "self.documents.long().expand",
                                     "(self.documents.long() * 0).expand", "llama", "documents"),
    "chunks are not kept apart": (described, "self.chunk, rounding_mode",
                                  "self.chunk * 9, rounding_mode", "llama4", "plain"),
    "chunks begin at the padding": (described, "(within - self.padding[:, None])", "(within)", "llama4",
                                    "left"),
    "chunks of a document are counted from the front": (
        described, "at.expand(B, -1) if self.positions is None", "at.expand(B, -1) if True", "llama4",
        "documents"),
    "packed sequences know no sinks": (
        described, "cu_q, cu_k, **options", "cu_q, cu_k, **{**options, 'sink': None}", "gpt_oss",
        "left"),
}


def _copy(module, source):
    """Return a module of another source; only what this file makes is bound to it."""
    made = types.ModuleType(module.__name__)
    exec(compile(source, module.__file__, "exec"), made.__dict__)
    return made


def _planted(module, old, new):
    """Return the door with a bug in it."""
    with open(module.__file__, encoding="utf-8") as file:
        source = edited(file.read(), ((old, new),))
    if module is door:
        return _copy(door, source)
    with open(door.__file__, encoding="utf-8") as file:
        made = _copy(door, file.read())
    bad = _copy(described, source)
    made.Seen, made.describe = bad.Seen, bad.describe
    return made


@functools.cache
def pair(family):
    """Return a model with eager attention, and one with what is registered as "planted"."""
    return model_of(family), model_of(family, "planted")


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_seen(name):
    module, old, new, family, case = MUTANTS[name]
    door.register("planted")
    models = pair(family)
    assert CASES[case](*models) <= MOST
    _planted(module, old, new).register("planted")
    assert CASES[case](*models) > LEAST
