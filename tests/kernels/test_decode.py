"""`flash_decode` on any machine: values by plain torch, lengths, pages, and what it refuses."""

import itertools
import math

import pytest

torch = pytest.importorskip("torch")

from flashlib.kernels import flash_attention, flash_decode  # noqa: E402
from tests.kernels.decode_cases import Case, expected, inputs, paged  # noqa: E402

GOOD = torch.ones(2, 4, 1, 8)
KEYS = torch.ones(2, 2, 6, 8)
LENGTHS = torch.tensor([3, 6], dtype=torch.int32)
PAGES, TABLE = torch.ones(5, 2, 3, 8), torch.zeros(2, 2, dtype=torch.int32)
MASKS = ((False, None), (True, None), (False, (5, 2)), (True, (20, 0)), (False, (None, 3)))


@pytest.mark.parametrize("causal, window", MASKS)
@pytest.mark.parametrize("sizes", [(3, 4, 2, 1, 40, 8), (3, 6, 1, 5, 17, 3), (1, 2, 2, 30, 9, 16)])
def test_it_equals_float64(sizes, causal, window):
    case = Case(*sizes, causal, window, lengths=True)
    given = inputs(case, torch.float64)
    options = {"causal": causal, "window": window, "return_lse": True, "lengths": given.lengths}
    right = expected(case, *given)
    for x, y in zip(flash_decode(*given[:3], **options), right, strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=1e-12)
    for page, garbage in itertools.product((1, 4, 16), (False, True)):
        k, v, table = paged(given, page, garbage=garbage)
        for x, y in zip(flash_decode(given.q, k, v, table=table, **options), right, strict=True):
            torch.testing.assert_close(x, y, rtol=0, atol=1e-12)


def test_without_lengths_it_is_attention():
    given = inputs(Case(2, 4, 2, 3, 20, 8))
    got = flash_decode(*given[:3], causal=True, scale=-0.3, return_lse=True)
    right = flash_attention(*given[:3], causal=True, scale=-0.3, return_lse=True)
    for x, y in zip(got, right, strict=True):
        torch.testing.assert_close(x, y)
    assert torch.equal(got[0], flash_decode(*given[:3], causal=True, scale=-0.3))


def test_what_stands_behind_a_length_is_not_used():
    given = inputs(Case(3, 4, 2, 1, 20, 8, lengths=True))
    right = flash_decode(*given[:3], lengths=given.lengths)
    for b, length in enumerate(given.lengths.tolist()):
        given.k[b, :, length:], given.v[b, :, length:] = math.nan, math.inf
    assert torch.equal(flash_decode(*given[:3], lengths=given.lengths), right)


def test_a_length_beyond_the_room_counts_as_the_room_and_one_below_0_as_0():
    given, found = inputs(Case(3, 4, 2, 1, 20, 8)), []
    for lengths in ([20, 7, 0], [2**31 - 1, 7, -3]):
        lengths = torch.tensor(lengths, dtype=torch.int32)
        found.append(flash_decode(*given[:3], lengths=lengths))
    assert torch.equal(*found)


@pytest.mark.parametrize("shape", [(0, 4, 1, 8), (2, 4, 0, 8)])
def test_no_query_gives_nothing(shape):
    k = torch.ones(shape[0], 2, 6, 8)
    o, lse = flash_decode(torch.ones(shape), k, k, return_lse=True)
    assert o.shape == shape and lse.shape == shape[:3]


@pytest.mark.parametrize("options", [
    {"k": KEYS[:, :, :0], "v": KEYS[:, :, :0]}, {"lengths": torch.zeros(2, dtype=torch.int32)},
    {"k": PAGES, "v": PAGES, "table": TABLE[:, :0]}, {"k": PAGES[:0], "v": PAGES[:0], "table": TABLE}],
    ids=["no room", "lengths 0", "no table", "no pages"])
def test_no_key_gives_0_and_minus_infinity(options):
    given = {"q": GOOD, "k": KEYS, "v": KEYS} | options
    o, lse = flash_decode(given.pop("q"), given.pop("k"), given.pop("v"), **given, return_lse=True)
    assert not o.any() and (lse == -math.inf).all()


WRONG = {                          # what changes, the error, its message
    "a list": ({"q": [1.0]}, TypeError, "q: expected a torch.Tensor, got list"),
    "D of k": ({"k": KEYS[..., :7]}, ValueError, "k: expected head dimension 8 as in q, got 7"),
    "B": ({"k": KEYS[:1], "v": KEYS[:1]}, ValueError, "k, v: expected batch size 2 as in q, got 1"),
    "heads": ({n: torch.ones(2, 3, 6, 8) for n in "kv"}, ValueError,
              "q: expected a number of heads that 3, the heads of k, divides, got 4"),
    "causal": ({"causal": 1}, TypeError, "causal: expected True or False, got 1"),
    "window": ({"window": (-1, 0)}, ValueError, "window: expected for left .* got -1"),
    "scale": ({"scale": math.inf}, ValueError, "scale: expected a finite number, got inf"),
    "huge scale": ({"scale": 1e30}, ValueError, "scale: expected at most 1e.15 in size"),
    "return_lse": ({"return_lse": 1}, TypeError, "return_lse: expected True or False, got 1"),
    "impl": ({"impl": "triton"}, ValueError, r"impl: expected one of \('auto', 'decode', 'ref"),
    "a list of lengths": ({"lengths": [3, 6]}, TypeError,
                          "lengths: expected a torch.Tensor, got list"),
    "long lengths": ({"lengths": LENGTHS.long()}, TypeError,
                     "lengths: expected int32, got torch.int64"),
    "lengths of three": ({"lengths": LENGTHS[[0, 1, 0]]}, ValueError,
                         r"lengths: expected shape \(2,\), got \(3,\)"),
    "lengths in 2-D": ({"lengths": LENGTHS[None]}, ValueError,
                       r"lengths: expected shape \(2,\), got \(1, 2\)"),
    "lengths elsewhere": ({"lengths": LENGTHS.to("meta")}, ValueError,
                          "lengths: expected a tensor on cpu as q, got meta"),
    "a long table": ({"table": TABLE.long()}, TypeError, "table: expected int32, got torch.int64"),
    "a table of one": ({"table": TABLE[:1]}, ValueError,
                       r"table: expected shape \(2, any\), got \(1, 2\)"),
    "pages of two shapes": ({"k": PAGES, "v": PAGES[:4], "table": TABLE}, ValueError,
                            r"v: expected the shape of k, \(5, 2, 3, 8\), got \(4, 2, 3, 8\)"),
    "D of pages": ({"k": PAGES[..., :7], "v": PAGES[..., :7], "table": TABLE}, ValueError,
                   "k: expected head dimension 8 as in q, got 7"),
    "pages in 3-D": ({"k": PAGES[0], "v": PAGES[0], "table": TABLE}, ValueError,
                     "k: expected 4 dimensions"),
    "keys of a split, a float": ({"keys_per_split": 64.0}, TypeError,
                                 "keys_per_split: expected None or a power of 2 from 16, got 64.0"),
    "keys of a split, few": ({"keys_per_split": 8}, ValueError,
                             r"keys_per_split: expected .* power of 2 from 16 to 2\*\*20, got 8"),
    "keys of a split, no power of 2": ({"keys_per_split": 48}, ValueError, "keys_per_split: .* got 48"),
    "a gradient": ({"q": GOOD.clone().requires_grad_()}, NotImplementedError,
                   "q, k, v: flash_decode is for inference .* torch.no_grad"),
}


@pytest.mark.parametrize("change, error, message", WRONG.values(), ids=WRONG)
@pytest.mark.parametrize("before", [False, True], ids=["first", "known"])
def test_wrong_inputs_are_refused_by_name(change, error, message, before):
    if before:
        flash_decode(GOOD, KEYS, KEYS)
    with pytest.raises(error, match=f"^{message}"):
        flash_decode(**{"q": GOOD, "k": KEYS, "v": KEYS, **change})


def test_under_no_grad_what_requires_a_gradient_is_taken():
    with torch.no_grad():
        flash_decode(GOOD.clone().requires_grad_(), KEYS, KEYS)


def test_without_the_interpreter_the_kernels_are_refused_with_a_remedy():
    pytest.importorskip("triton")
    with pytest.raises(NotImplementedError, match=r"'decode' on CPU .* TRITON_INTERPRET=1"):
        flash_decode(GOOD, KEYS, KEYS, impl="decode")


@pytest.mark.parametrize("sink", [torch.tensor([0.5, -1.0]), torch.nn.Parameter(torch.zeros(2))],
                         ids=["a tensor", "a parameter"])
def test_a_sink_is_read_and_never_written(sink):
    """Of one query of one sequence its logits lie as lse does."""
    q, k = torch.randn(1, 2, 1, 8), torch.randn(1, 2, 5, 8)
    before = sink.detach().clone()
    with torch.no_grad():
        one, lse = flash_decode(q, k, k, sink=sink, return_lse=True)
        of_none = flash_attention(q, k[:, :, :0], k[:, :, :0], sink=sink, return_lse=True)[1]
        again = flash_decode(q, k, k, sink=sink)
    assert torch.equal(sink, before) and torch.equal(one, again)
    assert sink.data_ptr() not in (lse.data_ptr(), of_none.data_ptr())


def test_a_transform_is_refused_by_name():
    with pytest.raises(NotImplementedError, match=r"is for inference, and not for torch\.func"):
        torch.vmap(lambda q: flash_decode(q, KEYS, KEYS))(GOOD[None])
