"""The softmax state (m, l, o): a commutative monoid, the algebra under the whole course."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flashlib.arguments import check_array, check_block, check_same_dtype


@dataclass(frozen=True)
class SoftmaxState:
    """What attention knows about the keys it has seen so far, for each query row.

    Milakov & Gimelshein 2018 (arXiv:1805.02867), section 3.1, extended by o. Taught in notebooks
    04 and 05; the same merge folds elements, tiles, split-KV chunks and ring steps.

    Args:
        m: running maximum of the logits, (rows,); −∞ where nothing was seen.
        l: sum of exp(logit − m), (rows,).
        o: sum of exp(logit − m)·v, (rows, d), not yet divided by l.
    """

    m: np.ndarray
    l: np.ndarray
    o: np.ndarray

    def __post_init__(self):
        check_array("m", self.m, ndim=1)
        check_array("l", self.l, ndim=1)
        check_array("o", self.o, ndim=2)
        check_same_dtype(m=self.m, l=self.l, o=self.o)
        rows = self.o.shape[0]
        if self.m.shape != (rows,) or self.l.shape != (rows,):
            raise ValueError(f"m, l: expected shape ({rows},) to match o {self.o.shape},"
                             f" got {self.m.shape} and {self.l.shape}")

    @classmethod
    def identity(cls, rows: int, d: int, dtype=np.float64) -> SoftmaxState:
        """Return the state of having seen nothing: (−∞, 0, 0)."""
        check_block("rows", rows, least=0)
        check_block("d", d)
        return cls(np.full(rows, -np.inf, dtype), np.zeros(rows, dtype), np.zeros((rows, d), dtype))

    @classmethod
    def of(cls, S: np.ndarray, V: np.ndarray) -> SoftmaxState:
        """Return the state after seeing the logits S (rows, keys) of the values V (keys, d).

        A logit of −∞ says that the row does not see the key: not even a NaN in its value.
        """
        check_array("S", S, ndim=2)
        check_array("V", V, ndim=2)
        check_same_dtype(S=S, V=V)
        if S.shape[1] != V.shape[0]:
            raise ValueError(f"S: expected {V.shape[0]} columns, one per row of V, got shape {S.shape}")
        m = S.max(axis=1, initial=-np.inf)
        P = np.exp(S - _shift(m)[:, None])
        tainted = ~np.all(np.isfinite(V), axis=1)
        o = P @ np.where(tainted[:, None], 0, V)
        with np.errstate(invalid="ignore"):
            for j in np.flatnonzero(tainted):
                seen = S[:, j] != -np.inf
                o[seen] += P[seen, j, None] * V[j]
        return cls(m, P.sum(axis=1), o)

    def merge(self, other: SoftmaxState) -> SoftmaxState:
        """Return the state of having seen the keys of both, in either order."""
        if not isinstance(other, SoftmaxState):
            raise TypeError(f"other: expected a SoftmaxState, got {type(other).__name__}")
        if other.o.shape != self.o.shape or other.o.dtype != self.o.dtype:
            raise ValueError(f"other: expected o of shape {self.o.shape} {self.o.dtype},"
                             f" got {other.o.shape} {other.o.dtype}")
        m = np.maximum(self.m, other.m)
        mine, theirs = np.exp(self.m - _shift(m)), np.exp(other.m - _shift(m))
        return SoftmaxState(m, mine * self.l + theirs * other.l,
                            mine[:, None] * self.o + theirs[:, None] * other.o)

    def finish(self) -> tuple[np.ndarray, np.ndarray]:
        """Return O = o / l, (rows, d), and lse = m + ln l, (rows,); a row that saw nothing: 0, −∞."""
        seen = self.l != 0
        lse = np.full_like(self.m, -np.inf)
        np.add(self.m, np.log(self.l, where=seen, out=np.zeros_like(self.l)), out=lse, where=seen)
        O = np.zeros_like(self.o)
        np.divide(self.o, self.l[:, None], out=O, where=seen[:, None])
        return O, lse


def _shift(m: np.ndarray) -> np.ndarray:
    """Return m, with −∞ made finite: exp(−∞ − finite) is 0 where exp(−∞ − (−∞)) is NaN."""
    return np.maximum(m, np.finfo(m.dtype).min)
