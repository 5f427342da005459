"""The caches: what was appended is attended to, pages are shared and given back, and nothing leaks."""

import random

import pytest

torch = pytest.importorskip("torch")

from flashlib.kernels import KVCache, PagedKV, flash_decode  # noqa: E402

H, H_K, D = 4, 2, 8


def normal(*shape, seed=0):
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=rng, dtype=torch.float64)


def contiguous(B, room):
    return KVCache(B, H_K, room, D, dtype=torch.float64)


def in_pages(B, room, page=4, pages=None):
    cache = PagedKV(pages or B * -(-room // page), H_K, page, D, sequences=B, room=room,
                    dtype=torch.float64)
    if pages is None:
        for i in range(B):
            cache.reserve(i, room)
    return cache


@pytest.mark.parametrize("kind", [contiguous, in_pages])
def test_a_prompt_in_parts_and_then_tokens_equal_attention_to_all_at_once(kind):
    B, N = 3, 13
    q, k, v = normal(B, H, N, D), normal(B, H_K, N, D, seed=1), normal(B, H_K, N, D, seed=2)
    cache, at, found = kind(B, 16), 0, []
    for n in (5, 3, 1, 1, 3):
        part = slice(at, at + n)
        found.append(cache.step(q[:, :, part], k[:, :, part], v[:, :, part]))
        at += n
    assert cache.lengths.tolist() == [N] * B and not cache.dropped.any()
    torch.testing.assert_close(torch.cat(found, 2), flash_decode(q, k, v, causal=True), rtol=0,
                               atol=1e-12)


@pytest.mark.parametrize("kind", [contiguous, in_pages])
def test_sequences_grow_by_counts_of_their_own(kind):
    B, N = 3, 6
    k, v = normal(B, H_K, N, D), normal(B, H_K, N, D, seed=1)
    cache = kind(B, 12)
    counts = torch.tensor([6, 0, 2], dtype=torch.int32)
    cache.append(k, v, counts=counts)
    cache.append(k, v, counts=counts)
    assert cache.lengths.tolist() == [12, 0, 4]
    q = normal(B, H, 1, D, seed=3)
    got = cache.attend(q)
    for b, n in enumerate(counts.tolist()):
        twice = [torch.cat([x[b:b + 1, :, :n]] * 2, 2) for x in (k, v)]
        torch.testing.assert_close(got[b:b + 1], flash_decode(q[b:b + 1], *twice), rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", [contiguous, in_pages])
def test_keys_that_find_no_room_are_dropped_and_counted_and_overwrite_nothing(kind):
    cache = kind(2, 8)
    k, v = normal(2, H_K, 6, D), normal(2, H_K, 6, D, seed=1)
    cache.append(k, v)
    before = cache.attend(q := normal(2, H, 1, D, seed=2), window=(7, 0))
    cache.append(k, v, counts=torch.tensor([6, 0], dtype=torch.int32))
    assert cache.lengths.tolist() == [8, 6] and cache.dropped.tolist() == [4, 0]
    assert torch.equal(cache.attend(q, window=(7, 0))[1], before[1])
    expected = [torch.cat([x[:1], x[:1, :, :2]], 2) for x in (k, v)]
    torch.testing.assert_close(cache.attend(q)[:1], flash_decode(q[:1], *expected))


@pytest.mark.parametrize("kind", [contiguous, in_pages])
def test_no_gradient_flows_into_a_cache(kind):
    cache, x = kind(1, 4), normal(1, H_K, 2, D).requires_grad_()
    assert cache.append(x * 2, x * 3).tolist() == [2]
    assert not cache.k.requires_grad and not cache.v.requires_grad
    assert cache.attend(normal(1, H, 1, D)).isfinite().all()


@pytest.mark.parametrize("kind", [contiguous, in_pages])
@pytest.mark.parametrize("wrong", [{"softcap": 0}, {"q": torch.ones(2, H, 1, D).half()}, {"colour": 1}],
                         ids=str)
def test_a_step_that_is_refused_leaves_no_key_behind(kind, wrong):
    cache, x = kind(2, 3), normal(2, H_K, 2, D)
    cache.append(x, x)
    given = {"q": normal(2, H, 1, D), **wrong}
    with pytest.raises((TypeError, ValueError)):
        cache.step(k=x, v=x, **given)
    assert cache.lengths.tolist() == [2, 2] and cache.dropped.tolist() == [0, 0]
    assert cache.step(normal(2, H, 1, D), x[:, :, :1], x[:, :, :1]).shape == (2, H, 1, D)
    assert cache.lengths.tolist() == [3, 3]


def test_pages_without_a_reservation_hold_nothing():
    cache = in_pages(2, 8, pages=4)
    cache.reserve(0, 5)
    x = normal(2, H_K, 6, D)
    cache.append(x, x)
    assert cache.lengths.tolist() == [6, 0] and cache.dropped.tolist() == [0, 6]
    assert cache.free_pages == 2 and (cache.table[1] == -1).all()


def test_a_fork_shares_full_pages_and_both_go_on_by_themselves():
    cache = in_pages(3, 16, pages=12)
    cache.reserve(0, 16)
    x, y = normal(3, H_K, 6, D), normal(3, H_K, 6, D, seed=1)
    only = torch.tensor([6, 0, 0], dtype=torch.int32)
    cache.append(x, y, counts=only)
    cache.fork(0, 1)
    assert cache.pages_of(1)[0] == cache.pages_of(0)[0]
    assert cache.pages_of(1)[1] not in cache.pages_of(0)
    assert cache.references[cache.pages_of(0)[0]] == 2
    cache.reserve(1, 16)
    new = normal(3, H_K, 3, D, seed=2)
    cache.append(new, new, counts=torch.tensor([3, 2, 0], dtype=torch.int32))
    for i, n in ((0, 3), (1, 2)):
        k, v = cache.gather(i)
        assert torch.equal(k, torch.cat([x[0], new[i, :, :n]], 1))
        assert torch.equal(v, torch.cat([y[0], new[i, :, :n]], 1))
    cache.free(0)
    assert torch.equal(cache.gather(1)[0], torch.cat([x[0], new[1, :, :2]], 1))
    cache.free(1)
    assert cache.free_pages == 12 and not any(cache.references)


def test_a_page_is_given_back_when_the_last_who_holds_it_goes():
    """A random life of many sequences against a plain Python model of their keys."""
    rng, cache = random.Random(0), in_pages(5, 24, pages=20)
    model = [[] for _ in range(5)]
    for step in range(300):
        i, j = rng.sample(range(5), 2)
        what = rng.choice(("grow", "grow", "grow", "fork", "free"))
        if what == "grow":
            n = rng.randint(1, 5)
            if len(model[i]) + n > 24:
                continue
            try:
                cache.reserve(i, len(model[i]) + n)
            except ValueError as error:
                assert "free" in str(error)
                continue
            counts = torch.zeros(5, dtype=torch.int32)
            counts[i] = n
            x = torch.full((5, H_K, n, D), float(step), dtype=torch.float64)
            x += torch.arange(n)[:, None] / 10
            cache.append(x, -x, counts=counts)
            model[i] += [step + m / 10 for m in range(n)]
        elif what == "fork" and not cache.pages_of(j) and cache.free_pages:
            cache.fork(i, j)
            model[j] = list(model[i])
        elif what == "free":
            cache.free(i)
            model[i] = []
        for n in range(5):
            k, v = cache.gather(n)
            assert k[0, :, 0].tolist() == pytest.approx(model[n]) and torch.equal(v, -k)
        held = [page for n in range(5) for page in cache.pages_of(n)]
        assert cache.references == [held.count(page) for page in range(20)]
        assert cache.free_pages == 20 - len(set(held))
    assert not cache.dropped.any()


X = torch.zeros(2, H_K, 3, D)
WRONG = {
    "B": (lambda c: c.append(X[:1], X[:1]), ValueError, r"k: expected shape \(2, 2, N, 8\), got \(1, "),
    "v": (lambda c: c.append(X, X[:, :, :2]), ValueError,
          r"v: expected the shape of k, \(2, 2, 3, 8\)"),
    "dtype": (lambda c: c.append(X.half(), X.half()), TypeError,
              "k: expected float32, got torch.float16"),
    "a list": (lambda c: c.append([1], X), TypeError, "k: expected a torch.Tensor, got list"),
    "elsewhere": (lambda c: c.append(X, X.to("meta")), ValueError,
                  "v: expected a tensor on cpu, got meta"),
    "counts": (lambda c: c.append(X, X, counts=torch.ones(2)), TypeError,
               "counts: expected int32, got torch.float32"),
    "a sequence": (lambda c: c.reserve(2, 1), ValueError,
                   "i: expected a sequence from 0 to 1, got 2"),
    "too long": (lambda c: c.reserve(0, 99), ValueError, "n: expected at most 12, .* got 99"),
    "too many": (lambda c: (c.reserve(0, 9), c.reserve(1, 9)), ValueError,
                 "n: expected at most 1 pages more, as many as are free, got 3"),
    "a fork onto pages": (lambda c: (c.reserve(1, 1), c.fork(0, 1)), ValueError,
                          "j: expected a sequence without pages, got 1, which holds 1"),
}


@pytest.mark.parametrize("call, error, message", WRONG.values(), ids=WRONG)
def test_wrong_inputs_are_refused_by_name(call, error, message):
    cache = PagedKV(4, H_K, 4, D, sequences=2, room=12, dtype=torch.float32)
    with pytest.raises(error, match=f"^{message}"):
        call(cache)


@pytest.mark.parametrize("make, error, message", [
    (lambda: KVCache(0, 1, 1, 1), ValueError, "B: expected a whole number of at least 1, got 0"),
    (lambda: KVCache(1, 1, 2.5, 1), TypeError, "room: expected a whole number, got 2.5"),
    (lambda: KVCache(1, 1, 1, 1, dtype=torch.int8), TypeError, "dtype: expected .* got torch.int8"),
    (lambda: PagedKV(1, 1, 0, 1, sequences=1, room=1), ValueError, "page: expected .* got 0")])
def test_no_cache_of_wrong_sizes(make, error, message):
    with pytest.raises(error, match=f"^{message}"):
        make()
