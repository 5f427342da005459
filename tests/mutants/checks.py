"""The checks that catch mutants: each isolates one mechanism, and fails by AssertionError only."""

from __future__ import annotations

import numpy as np

from flashlib import Machine
from flashlib.models import traffic
from tests import oracle
from tests.cases import qkv

BLOCKS = {"standard_attention": [{}, {"Br": 5, "Bc": 3}], "multi_pass_attention": [{}],
          "one_pass_attention": [{}], "flash_v1": [{"Br": 5, "Bc": 3}, {"Br": 2, "Bc": 4}],
          "flash_v2": [{"Br": 5, "Bc": 3}, {"Br": 2, "Bc": 4}]}
SOFTMAXES = ("naive_softmax", "safe_softmax", "online_softmax")


def attentions(built):
    """Yield (algorithm, blocks) for every attention algorithm and its tilings."""
    for name, tilings in BLOCKS.items():
        for blocks in tilings:
            yield name, getattr(built, name), blocks


def close(got, expected, what, rtol=1e-11):
    """Assert without a warning: a mutant may divide by zero on its way."""
    if not np.allclose(got, expected, rtol=rtol, atol=1e-11):
        raise AssertionError(f"{what}: expected {expected}, got {got}")


def check_value(built):
    """O of unmasked attention over several ragged tiles, with logits of ordinary size."""
    Q, K, V = qkv(0, 12, 10, 4)
    for scale in (None, 0.3):
        expected, _ = oracle.attention(2 * Q, K, V, scale=scale)
        for name, algorithm, blocks in attentions(built):
            close(algorithm(2 * Q, K, V, scale=scale, **blocks)[0], expected, f"O of {name}")


def check_lse(built):
    """The log-sum-exp of unmasked attention, natural log."""
    Q, K, V = qkv(1, 12, 10, 4)
    _, expected = oracle.attention(Q, K, V)
    for name, algorithm, blocks in attentions(built):
        close(algorithm(Q, K, V, **blocks)[1], expected, f"lse of {name}")


def check_mask(built):
    """O and lse under the causal mask, for as many, fewer and more queries than keys."""
    for Nq, Nk in ((11, 11), (7, 11), (11, 7)):
        Q, K, V = qkv(2, Nq, Nk, 3)
        expected = oracle.attention(Q, K, V, causal=True)
        for name, algorithm, blocks in attentions(built):
            for part, a, b in zip(("O", "lse"), algorithm(Q, K, V, causal=True, **blocks), expected,
                                  strict=True):
                close(a, b, f"{part} of {name}, Nq={Nq}, Nk={Nk}")


def check_leak(built):
    """NaN in a key and a value that a row may not see, inside of a diagonal tile too."""
    Q, K, V = qkv(3, 11, 11, 3)
    expected, _ = oracle.attention(Q, K, V, causal=True)
    K[6:], V[6:] = np.nan, np.nan
    for name, algorithm, blocks in attentions(built):
        close(algorithm(Q, K, V, causal=True, **blocks)[0][:6], expected[:6], f"O of {name}")


def check_overflow(built):
    """Logits that rise and fall by ten thousand from tile to tile."""
    for steps in (np.linspace(-1e4, 1e4, 12), np.linspace(1e4, -1e4, 12)):
        Q, K, V = np.ones((4, 1)), steps[:, None].copy(), np.arange(12.0)[:, None]
        expected = oracle.attention(Q, K, V, scale=1.0)
        for name, algorithm, blocks in attentions(built):
            for part, a, b in zip(("O", "lse"), algorithm(Q, K, V, scale=1.0, **blocks), expected,
                                  strict=True):
                close(a, b, f"{part} of {name}")


def check_bytes(built):
    """HBM bytes, tensor by tensor, against the closed forms: full and causal, tiles not square."""
    for causal, Nq, Nk in ((False, 12, 10), (True, 11, 11), (True, 7, 12), (True, 12, 7)):
        Q, K, V = qkv(4, Nq, Nk, 4)
        for name, algorithm, blocks in attentions(built):
            machine = Machine(stats_bytes=8)
            algorithm(Q, K, V, causal=causal, machine=machine, **blocks)
            form = getattr(traffic, name)(Nq=Nq, Nk=Nk, d=4, causal=causal, stats_bytes=8, **blocks)
            if machine.traffic.by_tensor != form.by_tensor:
                raise AssertionError(f"{name}: expected {form.by_tensor},"
                                     f" got {machine.traffic.by_tensor}")
    for name in SOFTMAXES:
        machine = Machine(stats_bytes=8)
        getattr(built, name)(np.zeros((3, 5)), machine=machine)
        form = getattr(traffic, name)(rows=3, n=5, stats_bytes=8)
        assert machine.traffic.by_tensor == form.by_tensor, name


def check_sram(built):
    """Peak SRAM against the closed forms."""
    Q, K, V = qkv(5, 12, 10, 4)
    for name, algorithm, blocks in attentions(built):
        machine = Machine(accumulator_bytes=8)
        algorithm(Q, K, V, machine=machine, **blocks)
        form = getattr(traffic, name)(Nq=12, Nk=10, d=4, accumulator_bytes=8, **blocks)
        assert machine.traffic.sram_peak_bytes == form.sram_peak_bytes, name


def check_softmax(built):
    """The three softmaxes on logits of ordinary size, in an order that moves the maximum."""
    x = np.array([[0.5, 2.0, -1.0, 3.0], [3.0, 1.0, 2.0, 0.0]])
    for name in SOFTMAXES:
        close(getattr(built, name)(x), oracle.softmax(x), name)


def check_softmax_overflow(built):
    """The safe softmaxes on logits of ten thousand, and on rows of −∞."""
    x = np.array([[-1e4, 0.0, 1e4], [1e4, 0.0, -1e4], [-np.inf] * 3])
    for name in SOFTMAXES[1:]:
        close(getattr(built, name)(x), oracle.softmax(x), name)


def check_state(built):
    """Two halves of the keys merge into the whole, whichever half holds the maximum."""
    S, V = qkv(6, 5, 6, 6)[0], qkv(7, 6, 6, 3)[1]
    whole = built.SoftmaxState.of(3 * S, V).finish()
    expected = oracle.softmax(3 * S) @ V
    merged = built.SoftmaxState.of(3 * S[:, :2], V[:2]).merge(
        built.SoftmaxState.of(3 * S[:, 2:], V[2:])).finish()
    close(whole[0], expected, "O of the whole")
    close(merged[0], expected, "O of the merge")
    close(whole[1], np.log(np.exp(3 * S).sum(axis=1)), "lse of the whole")
    close(merged[1], whole[1], "lse of the merge")


def check_empty_state(built):
    """The identity is one, and an empty row finishes as (0, −∞)."""
    nothing = built.SoftmaxState.identity(2, 3)
    some = built.SoftmaxState.of(np.ones((2, 4)), np.ones((4, 3)))
    with np.errstate(all="ignore"):
        O, lse = nothing.merge(nothing).finish()
        close(O, 0, "O of an empty row")
        close(lse, -np.inf, "lse of an empty row")
        close(nothing.merge(some).finish()[0], some.finish()[0], "the identity merged")


CHECKS = {name: check for name, check in list(vars().items()) if name.startswith("check_")}
