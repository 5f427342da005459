"""Grouped heads: a wrong kernel is not timed."""

import pytest

from flashlib.course.bench import grouped as bench


@pytest.mark.parametrize("heads", [4, 2])
def test_a_head_of_another_group_is_noticed(heads, monkeypatch):
    torch = pytest.importorskip("torch")
    from flashlib.kernels import flash_attention

    q, k, v = (torch.randn(1, n, 64, 32, generator=torch.Generator().manual_seed(n))
               for n in (4, heads, heads))
    monkeypatch.setattr(bench.gluon_ablation, "forward", lambda q, k, v, causal, config: (
        flash_attention(q, k, v, causal=causal, impl="reference"), None))
    _, error = bench.checked(q, k, v, True)
    assert error < 1e-5
    monkeypatch.setattr(bench.gluon_ablation, "forward", lambda q, k, v, causal, config: (
        flash_attention(q, k.roll(1, 1), v, causal=causal, impl="reference"), None))
    with pytest.raises(RuntimeError, match="wrong"):
        bench.checked(q, k, v, True)
