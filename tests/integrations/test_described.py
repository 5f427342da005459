"""A mask that stays a description says what transformers' own dense mask says."""

import os

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

os.environ["HF_HUB_OFFLINE"] = "1"
pytest.importorskip("transformers", reason="`make test-transformers` installs transformers")

from transformers import masking_utils as theirs

from flashlib.integrations.described import Seen, describe

KINDS = ("causal", "window", "chunks", "both ways", "window both ways")


def attended(mask, q, k, v):
    """Return attention by a dense mask, as its definition reads, and which rows see a key."""
    S = (q @ k.repeat_interleave(2, 1).transpose(2, 3)) / q.shape[3] ** 0.5
    P = torch.softmax(S.masked_fill(~mask, -torch.inf), -1).nan_to_num(0.0)
    return (P @ v.repeat_interleave(2, 1)).transpose(1, 2), mask.any(-1)[:, 0]


def function_of(kind, width, real, ids, B):
    left = (real.long().cumsum(1) == 0).sum(1) if real is not None else torch.zeros(B, dtype=torch.long)
    function = {"causal": theirs.causal_mask_function,
                "window": theirs.sliding_window_causal_mask_function(width),
                "chunks": theirs.chunked_causal_mask_function(width, left),
                "both ways": theirs.bidirectional_mask_function,
                "window both ways": theirs.sliding_window_bidirectional_mask_function(width)}[kind]
    if ids is None:
        return function
    documents = theirs.find_packed_sequence_indices(ids)
    if documents is None:
        return function
    return theirs.packed_sequence_compatibility_function(function, ids, documents)


@st.composite
def questions(draw):
    """Return what a mask function is asked: part of a sequence, in a cache that may have more room."""
    kind, B = draw(st.sampled_from(KINDS)), draw(st.integers(1, 3))
    width, seen = draw(st.integers(1, 6)), draw(st.integers(1, 14))
    ways = kind.endswith("both ways")
    N_q = seen if ways else draw(st.integers(1, seen))
    q_offset = seen - N_q
    kv_offset = draw(st.integers(0, max(0, q_offset - width + 1))) if kind in ("window",
                                                                               "chunks") else 0
    room = 0 if ways else draw(st.sampled_from((0, 0, 3)))
    real, ids = draw(st.sampled_from(("none", "left", "right", "documents"))), None
    if real == "documents" and N_q == seen and not room and not kv_offset and not ways:
        cuts = draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))
        ids = torch.cat([torch.arange(n) for n in cuts])[:seen]
        ids = torch.cat([ids, torch.arange(seen - len(ids))]).expand(B, -1)
    mask = None
    if real in ("left", "right"):
        n = torch.tensor(draw(st.lists(st.integers(0, seen), min_size=B, max_size=B)))[:, None]
        j = torch.arange(seen)
        mask = j >= seen - n if real == "left" else j < n
    return kind, B, width, N_q, q_offset, seen - kv_offset + room, kv_offset, mask, ids


@given(questions(), st.sampled_from((8, 8, 5, 11)))
@settings(max_examples=400)
def test_a_description_says_what_the_dense_mask_says(question, D_v):
    kind, B, width, N_q, q_offset, N_k, kv_offset, real, ids = question
    asked = {"batch_size": B, "q_length": N_q, "kv_length": N_k, "q_offset": q_offset,
             "kv_offset": kv_offset,
             "mask_function": function_of(kind, width, real, ids, B), "attention_mask": real}
    seen = describe(**asked)
    dense = theirs.sdpa_mask(**asked, allow_is_causal_skip=False)
    numbers = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(B, H, N, D, dtype=torch.float64, generator=numbers)
               for H, N, D in ((4, N_q, 8), (2, N_k, 8), (2, N_k, D_v)))
    k[:, :, q_offset + N_q - kv_offset:] = torch.nan        # room that nobody has written
    expected, there = attended(dense, q, k.nan_to_num(0.0), v)
    got = seen.attention(q, k, v)
    assert seen.shape == dense.shape and seen.ndim == 4
    if real is not None and kind != "both ways":            # what a row of padding gets, nobody reads
        there = there & real[:, q_offset:q_offset + N_q]
    assert torch.allclose(got[there], expected[there], atol=1e-12)
    assert got.isfinite().all() and bool((got[~dense.any(-1)[:, 0]] == 0).all())


def test_nothing_is_as_large_as_the_mask_it_stands_for():
    N = 2**20
    seen = describe(1, N, N, mask_function=theirs.causal_mask_function)
    assert seen.shape == (1, 1, N, N)
    seen = describe(2, N, N, mask_function=theirs.causal_mask_function,
                    attention_mask=torch.arange(N) < torch.tensor([[N], [N - 1]]))
    assert all(x.numel() < 2 * N for x in seen.packed if x is not None)


def test_sequences_that_are_padded_alike_are_not_packed():
    seen = describe(3, 1, 12, q_offset=11, mask_function=theirs.causal_mask_function,
                    attention_mask=(torch.arange(12) >= 5).expand(3, -1))
    assert seen.packed is None and seen.run == slice(5, 12)


def test_the_length_of_a_static_cache_may_lie_on_the_device():
    seen = describe(2, 3, 20, q_offset=torch.tensor(4), mask_function=theirs.causal_mask_function)
    assert seen.packed is None and seen.run == slice(0, 7)


def test_padding_inside_a_sequence_needs_no_window():
    mask = torch.tensor([[1, 1, 0, 0, 1, 1]]).bool()
    asked = {"batch_size": 1, "q_length": 6, "kv_length": 6, "attention_mask": mask}
    q = torch.randn(1, 4, 6, 8, dtype=torch.float64)
    k = torch.randn(1, 2, 6, 8, dtype=torch.float64)
    asked["mask_function"] = theirs.causal_mask_function
    expected, _ = attended(theirs.sdpa_mask(**asked), q, k, k)
    got = describe(**asked).attention(q, k, k)
    assert torch.allclose(got[mask], expected[mask], atol=1e-12)
    asked["mask_function"] = theirs.sliding_window_causal_mask_function(4)
    with pytest.raises(NotImplementedError,
                       match=r"^attention_mask: expected padding before or behind"):
        describe(**asked)


@pytest.mark.parametrize("function, said", [
    (theirs.or_masks(theirs.causal_mask_function, theirs.bidirectional_mask_function), "or_masks"),
    (theirs.and_masks(theirs.causal_mask_function, theirs.blockwise_overlay(torch.zeros(1, 4))),
     "blockwise_overlay"),
    (lambda b, h, i, j: j <= i, "test_described"), (None, r"\?")])
def test_a_mask_that_no_description_fits_is_refused_by_name(function, said):
    with pytest.raises(NotImplementedError, match=rf"^attention_mask: .*{said}.*flex_attention"):
        describe(1, 4, 4, mask_function=function)


def test_queries_that_lie_on_no_key_are_refused():
    with pytest.raises(NotImplementedError,
                       match=r"^attention_mask: expected the queries to lie on keys"):
        describe(1, 4, 4, q_offset=2, mask_function=theirs.causal_mask_function)


def test_a_description_is_handed_on_and_not_computed_with():
    seen = describe(2, 4, 4, mask_function=theirs.causal_mask_function)
    for same in (seen.contiguous(), seen.to("cpu"), seen.clone(), seen.detach()):
        assert same is seen
    assert "(2, 1, 4, 4)" in repr(seen) and isinstance(seen, Seen)
    for use in (lambda: seen[:, :, :2], lambda: torch.ones(2) + seen, lambda: torch.where(seen, 0, 1)):
        with pytest.raises(NotImplementedError,
                           match=r"^attention_mask: this model computes with its mask"):
            use()


def test_keys_that_the_mask_does_not_know_are_refused():
    seen = describe(1, 4, 4, mask_function=theirs.causal_mask_function)
    q = torch.randn(1, 1, 4, 8)
    with pytest.raises(ValueError,
                       match=r"^attention_mask: expected a mask of \(4, 4\) queries and keys, got"):
        seen.attention(q, q[:, :, :3], q[:, :, :3])
