"""A mask of transformers that stays a description: a few numbers for each row, nothing N × N.

transformers builds a mask from functions of four indices, which say for a pair of positions whether one
sees the other. `describe` reads these functions instead of calling them. What it finds is one of two
things: a window on a run of keys that is the same for the whole batch, or runs of their own for padded
sequences, packed documents and chunks, which are then attended to as packed sequences. All else is
refused.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from flashlib.kernels.attention import flash_attention, of_unlike
from flashlib.kernels.decode import IMPLS, flash_decode
from flashlib.kernels.packed import flash_attention_varlen
from flashlib.masks import Window

HOME = "transformers.masking_utils"
FEW = 8                            # queries, at most, for which a cache's length stays a tensor
ELSEWHERE = "use attn_implementation='flex_attention' or 'sdpa' for it"


class Packed(NamedTuple):
    """Which rows of (B · N, H, D) form which sequences; `rows` or `keys` None takes all of them."""

    rows: torch.Tensor | None
    keys: torch.Tensor | None
    cu_q: torch.Tensor                                      # (sequences + 1,) int32
    cu_k: torch.Tensor


@dataclass
class Rules:
    """What a mask function of transformers asks for, in one place."""

    left: int | None = None
    right: int | None = None
    chunk: int | None = None
    padding: torch.Tensor | None = None                     # (B,): where a first chunk begins
    documents: torch.Tensor | None = None                   # (B, N): equal numbers belong together
    positions: torch.Tensor | None = None                   # (B, N), inside a document

    def read(self, function) -> None:
        """Add what a mask function asks for, or refuse it by name."""
        made_by = getattr(function, "__qualname__", "?").partition(".")[0]
        if getattr(function, "__module__", None) != HOME:
            made_by = f"{getattr(function, '__module__', '?')}.{made_by}"
        held = _closure_of(function)
        match made_by:
            case "causal_mask_function":
                self._bound(None, 0)
            case "bidirectional_mask_function":
                pass
            case "and_masks":
                for part in held["mask_functions"]:
                    self.read(part)
            case "sliding_window_overlay":
                self._bound(held["sliding_window"] - 1, None)       # it counts the row itself
            case "sliding_window_bidirectional_overlay":
                self._bound(held["sliding_window"], held["sliding_window"])
            case "chunked_overlay":
                self.chunk, self.padding = held["chunk_size"], held["left_padding"]
            case "packed_sequence_mask_function":
                self.documents = held["packed_sequence_mask"]
            case "remap_positions_for_packed_sequence":
                self.positions = held["position_ids"]
                self.read(held["mask_function"])
            case _:
                raise NotImplementedError(
                    f"attention_mask: expected causal, window, chunk, padding or packed documents, got"
                    f" {made_by} of transformers, which no such description fits: {ELSEWHERE}")

    def _bound(self, left: int | None, right: int | None) -> None:
        self.left = min([side for side in (left, self.left) if side is not None], default=None)
        self.right = min([side for side in (right, self.right) if side is not None], default=None)

    def labels(self, at: torch.Tensor, real: torch.Tensor | None, B: int) -> torch.Tensor | None:
        """Return (B, N_k): keys of one number belong together, −1 to none; or None, if all do.

        `at` holds the positions of the keys, `real` says which of them are no padding.
        """
        found = None
        if self.documents is not None:
            found = self.documents.long().expand(B, -1)
        if self.chunk is not None and self.padding is not None:
            within = at.expand(B, -1) if self.positions is None else self.positions.expand(B, -1)
            chunk = (within - self.padding[:, None]).div(self.chunk, rounding_mode="floor").clamp(min=0)
            most = int(chunk.max()) + 1 if chunk.numel() else 1
            found = chunk if found is None else found * most + chunk
        if real is not None and not bool(real.all()):
            found = torch.zeros_like(real, dtype=torch.long) if found is None else found
            found = found.masked_fill(~real, -1)
        return found


@dataclass(eq=False)
class Seen:
    """Which keys each row sees: it stands for a boolean (B, 1, N_q, N_k), and has only its shape.

    A model hands it from layer to layer; what would read it as numbers is refused.
    """

    shape: tuple[int, int, int, int]
    window: Window
    run: slice                                              # the keys that count, if nothing is packed
    packed: Packed | None = None
    lengths: torch.Tensor | None = None                     # (B,) int32: where `run` ends
    ndim = 4

    def handed_on(self, *_, **__) -> "Seen":
        """Return itself: a description has no memory and lies on every device."""
        return self

    contiguous = to = clone = detach = handed_on

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None) -> Any:
        """Refuse to be computed with."""
        raise NotImplementedError(f"attention_mask: this model computes with its mask ({func.__name__})"
                                  f", which is a description and holds no numbers: {ELSEWHERE}")

    def __getitem__(self, at) -> Any:
        """Refuse to be cut."""
        return self.__torch_function__(self.__getitem__, ())

    def attention(self, q, k, v, **options) -> torch.Tensor:
        """Return O (B, N_q, H, D) of q (B, H, N_q, D) and k, v (B, H_k, N_k, D)."""
        if (q.shape[2], k.shape[2]) != self.shape[2:]:
            raise ValueError(f"attention_mask: expected a mask of {self.shape[2:]} queries and keys,"
                             f" got {q.shape[2]} and {k.shape[2]}")
        options["window"] = (self.window.left, self.window.right)
        if self.packed is not None:
            return self._of_packed(self.packed, q, k, v, **options)
        learning = torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v))
        if self.lengths is None or learning:
            o = flash_attention(q, k[:, :, self.run], v[:, :, self.run], **options)
        else:
            options["impl"] = options["impl"] if options.get("impl") in IMPLS else "auto"
            o = of_unlike(_decode, q, k, v, lengths=self.lengths.to(q.device), **options)
        return o.transpose(1, 2).contiguous()

    def _of_packed(self, packed: Packed, q, k, v, **options) -> torch.Tensor:
        rows, keys = (None if x is None else x.to(q.device) for x in (packed.rows, packed.keys))
        cu_q, cu_k = packed.cu_q.to(q.device), packed.cu_k.to(q.device)
        (B, _, N, _), (q, k, v) = q.shape, (x.transpose(1, 2).flatten(0, 1) for x in (q, k, v))
        q, k, v = (x if at is None else x[at] for x, at in ((q, rows), (k, keys), (v, keys)))
        o = flash_attention_varlen(q, k, v, cu_q, cu_k, **options)
        if rows is not None:                                # a row of padding is 0
            o = o.new_zeros(B * N, *o.shape[1:]).index_copy(0, rows, o)
        return o.reshape(B, N, *o.shape[1:])


_decode: Any = torch.compiler.disable(flash_decode)         # it looks at tensors as no trace can


def _closure_of(function) -> dict[str, Any]:
    """Return the variables that a function has from where it was made."""
    names, cells = getattr(function, "__code__", None), getattr(function, "__closure__", None)
    return {} if names is None or cells is None else {
        name: cell.cell_contents for name, cell in zip(names.co_freevars, cells, strict=True)}


@torch.compiler.disable
def describe(batch_size, q_length, kv_length, q_offset=0, kv_offset=0, mask_function=None,
             attention_mask=None, device="cpu", **_) -> Seen:
    """Return what transformers' `sdpa_mask` would return for the same arguments, as a description.

    Row i lies on position q_offset + i, key j on kv_offset + j, and `attention_mask` (B, positions) is
    False where a position is padding.

    Raises:
        NotImplementedError: for a mask that is no window inside of sequences, documents or chunks.
    """
    if isinstance(attention_mask, Seen):                    # generate made it, for a static cache
        return attention_mask
    rules, first = Rules(), int(q_offset) - int(kv_offset)  # the key on which the first row lies
    rules.read(mask_function)
    window, last = Window(rules.left, rules.right), first + q_length
    at, real = torch.arange(kv_length, device=device) + kv_offset, None
    if attention_mask is not None:
        real = attention_mask.bool().to(device)
        missing = kv_length + kv_offset - real.shape[1]     # room that nobody has written
        real = torch.nn.functional.pad(real, (0, max(missing, 0)))[:, kv_offset:kv_offset + kv_length]
    shape, run = (batch_size, 1, q_length, kv_length), slice(0, kv_length)
    # Where position counts, queries lie on keys; else they may be another sequence's, and see all keys.
    placed = window != Window() or rules.documents is not None or rules.chunk is not None
    if placed:
        if not 0 <= first <= last <= kv_length or (rules.right != 0 and last != kv_length):
            raise NotImplementedError(
                f"attention_mask: expected the queries to lie on keys, got {q_length} queries from key"
                f" {first} on and {kv_length} keys")
        run = slice(0, last)                                # what lies behind, no row sees
        at, real = at[run], None if real is None else real[:, run]
    if rules.positions is not None and rules.documents is None:
        raise NotImplementedError(f"position_ids: expected those of packed documents; {ELSEWHERE}")
    labels = rules.labels(at, real, batch_size)
    if labels is None:
        room = placed and last < kv_length and q_length <= FEW      # no shape grows from step to step
        lengths = torch.full((batch_size,), last, dtype=torch.int32, device=device) if room else None
        return Seen(shape, window, run, lengths=lengths)
    rows = labels[:, first:] if placed else labels.new_zeros(batch_size, q_length)
    run = _one_run(labels, rows)
    if run is not None:
        return Seen(shape, window, run)
    if (window.left is not None or window.right) and real is not None and _holes(real):
        raise NotImplementedError("attention_mask: expected padding before or behind a sequence, got"
                                  f" some inside of one that has a window: {ELSEWHERE}")
    return Seen(shape, window, slice(0, kv_length), _pack(labels, rows, kv_length))


def _one_run(labels: torch.Tensor, rows: torch.Tensor) -> slice | None:
    """Return the one run of keys that all rows of all sequences share, if there is one."""
    alike = (labels == labels[:1]).all() & (rows == rows[:1, :1]).all() & (rows >= 0).all()
    if not rows.numel() or not bool(alike):
        return None
    here = (labels[0] == rows[0, 0]).nonzero().flatten().tolist()
    return slice(here[0], here[-1] + 1) if here and here[-1] - here[0] + 1 == len(here) else None


def _holes(real: torch.Tensor) -> bool:
    """Tell whether in some row of (B, N) what is True is not one run."""
    starts = real & ~torch.nn.functional.pad(real, (1, 0))[:, :-1]
    return bool((starts.sum(1) > 1).any())


def _pack(labels: torch.Tensor, rows: torch.Tensor, N_k: int) -> Packed:
    """Return the packed sequences: one for each number of each row of `labels` that a query has."""
    B, most = len(labels), max(int(torch.cat((labels, rows), 1).max()) + 1, 1)
    b = torch.arange(B, device=labels.device)[:, None]
    (there_q, q), (there_k, k) = ((x >= 0, x + b * most) for x in (rows, labels))
    count_q = torch.bincount(q[there_q], minlength=B * most)
    there_k = there_k & (count_q > 0)[k.clamp(min=0)]       # of keys that no query sees, none is taken
    count_k = torch.bincount(k[there_k], minlength=B * most)
    used = count_q > 0

    def cumulative(count):
        return torch.nn.functional.pad(count[used].cumsum(0), (1, 0)).int()

    def places(there, N):
        at = there.flatten().nonzero().flatten()
        return None if len(at) == B * N else at // there.shape[1] * N + at % there.shape[1]

    return Packed(places(there_q, rows.shape[1]), places(there_k, N_k), cumulative(count_q),
                  cumulative(count_k))
