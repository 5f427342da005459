"""Caches of keys and values that grow in place on the device: one room a sequence, or pages.

Lengths lie on the device, and `append` and `attend` read none of them on the host, so that a CUDA graph
captures both. Who has which page is the host's bookkeeping: lists, and a count of references for each
page. Allocate, fork and free between replays, never inside a graph.
"""

import torch

from flashlib.arguments import check_block
from flashlib.kernels.attention import FLOATS, check_tensor
from flashlib.kernels.decode import flash_decode


class _Cache:
    """What both caches share: how keys are added and attended to. `k` and `v` are what kernels read.

    The last row, or page, of the memory behind them is where keys go that found no room.
    """

    lengths: torch.Tensor                                   # (B,) int32: keys that count
    dropped: torch.Tensor                                   # (B,) int32: keys that found no room
    _memory: tuple[torch.Tensor, torch.Tensor]
    _table: torch.Tensor | None = None

    def _room(self):
        """Return the keys that each sequence has room for, a number or (B,) int32."""
        raise NotImplementedError

    def _places(self, at, there):
        """Return the two indices of the keys at these places of each sequence, (B, N) both."""
        raise NotImplementedError

    @property
    def k(self) -> torch.Tensor:
        """Return the keys as `flash_decode` takes them."""
        raise NotImplementedError

    @property
    def v(self) -> torch.Tensor:
        """Return the values as `flash_decode` takes them."""
        raise NotImplementedError

    def append(self, k: torch.Tensor, v: torch.Tensor, *,
               counts: torch.Tensor | None = None) -> torch.Tensor:
        """Write new keys and values behind those of each sequence, in place; return how many, (B,).

        Args:
            k, v: (B, H_k, N, D), in the dtype and on the device of the cache.
            counts: (B,) int32, how many of the N count for each sequence, the first ones; None for all.

        Keys that find no room are dropped, and counted in `dropped`: nothing else is overwritten. No
        gradient flows into a cache.

        Raises:
            ValueError, TypeError: naming the argument, what was expected and what came.
        """
        B, H, D = self._sizes()
        for name, x in (("k", k), ("v", v)):
            check_tensor(name, x, self._memory[0].dtype, (B, H, "N", D), self.lengths.device)
        if v.shape != k.shape:
            raise ValueError(f"v: expected the shape of k, {tuple(k.shape)}, got {tuple(v.shape)}")
        N = k.shape[2]
        new = torch.full_like(self.lengths, N)
        if counts is not None:
            check_tensor("counts", counts, torch.int32, (B,), self.lengths.device)
            new = counts.clamp(0, N)
        j = torch.arange(N, device=k.device, dtype=torch.int32)
        at = self.lengths[:, None] + j                      # where each would lie
        stored = torch.minimum(new, (self._room() - self.lengths).clamp(min=0))
        first, second = self._places(at, j < stored[:, None])
        for memory, x in zip(self._memory, (k, v), strict=True):
            memory[first, :, second] = x.detach().transpose(1, 2)
        self.lengths += stored
        self.dropped += new - stored
        return stored

    def attend(self, q: torch.Tensor, *, causal: bool = True, **options):
        """Return attention of q (B, H, N_q, D) to the cache, its last query on the last key.

        `options` are those of `flash_decode`.
        """
        return flash_decode(q, self.k, self.v, lengths=self.lengths, table=self._table, causal=causal,
                            **options)

    def step(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **options):
        """Append k and v, then attend, in one call; one that is refused leaves no key behind."""
        stored = self.append(k, v)
        try:
            return self.attend(q, **options)
        except (TypeError, ValueError, NotImplementedError):
            self.lengths -= stored
            self.dropped -= k.shape[2] - stored
            raise

    def _sizes(self):
        return len(self.lengths), self._memory[0].shape[1], self._memory[0].shape[3]


def _made(dtype, device, **sizes) -> dict:
    """Return what new tensors are made with, or refuse by name."""
    for name, size in sizes.items():
        check_block(name, size)
    if dtype not in FLOATS and dtype != torch.float64:
        raise TypeError(f"dtype: expected float16, bfloat16, float32 or float64, got {dtype}")
    return {"dtype": dtype, "device": device}


class KVCache(_Cache):
    """Keys and values of B sequences, each in a room of its own.

    Taught in notebook 15. `k` and `v` are (B, heads, room, D), `lengths` and `dropped` (B,) int32.

    Args:
        B: sequences.  heads: of keys.  room: keys that each sequence has room for.  D: head dimension.
        dtype: of keys and values.  device: where they lie.
    Raises:
        ValueError, TypeError: naming the argument, what was expected and what came.
    """

    def __init__(self, B: int, heads: int, room: int, D: int, *, dtype=torch.bfloat16, device=None):
        make = _made(dtype, device, B=B, heads=heads, room=room, D=D)
        self.room = room
        self._memory = (torch.zeros(B, heads, room + 1, D, **make),
                        torch.zeros(B, heads, room + 1, D, **make))
        where = self._memory[0].device
        self.lengths = torch.zeros(B, dtype=torch.int32, device=where)
        self.dropped = torch.zeros(B, dtype=torch.int32, device=where)

    @property
    def k(self) -> torch.Tensor:
        """Return the keys, (B, heads, room, D)."""
        return self._memory[0][:, :, :-1]

    @property
    def v(self) -> torch.Tensor:
        """Return the values, (B, heads, room, D)."""
        return self._memory[1][:, :, :-1]

    def _room(self):
        return self.room

    def _places(self, at, there):
        b = torch.arange(len(at), device=at.device)[:, None]
        return b, torch.where(there, at, self.room).long()


class PagedKV(_Cache):
    """Keys and values of many sequences in pages of one pool, which sequences may share.

    As in vLLM (Kwon et al. 2023, arXiv:2309.06180). Taught in notebook 15. `k` and `v` are (pages,
    heads, page, D); `table` (sequences, room / page) int32 holds the page of each run of `page` keys,
    or −1; `lengths` and `dropped` are (sequences,) int32. Lower none by hand: forks may share a page.

    Args:
        pages: in the pool.  heads: of keys.  page: keys of a page.  D: head dimension.
        sequences: rows of the table.  room: most keys of a sequence.
        dtype: of keys and values.  device: where they lie.
    Raises:
        ValueError, TypeError: naming the argument, what was expected and what came.
    """

    def __init__(self, pages: int, heads: int, page: int, D: int, *, sequences: int, room: int,
                 dtype=torch.bfloat16, device=None):
        make = _made(dtype, device, pages=pages, heads=heads, page=page, D=D, sequences=sequences,
                     room=room)
        self.page = page
        self._memory = (torch.zeros(pages + 1, heads, page, D, **make),
                        torch.zeros(pages + 1, heads, page, D, **make))
        where = self._memory[0].device
        self.table = torch.full((sequences, -(-room // page)), -1, dtype=torch.int32, device=where)
        self._table = self.table
        self.lengths = torch.zeros(sequences, dtype=torch.int32, device=where)
        self.dropped = torch.zeros(sequences, dtype=torch.int32, device=where)
        self._reserved = torch.zeros(sequences, dtype=torch.int32, device=where)
        self.references = [0] * pages                       # how many sequences hold each page
        self._unused = list(range(pages))[::-1]
        self._held: list[list[int]] = [[] for _ in range(sequences)]

    @property
    def k(self) -> torch.Tensor:
        """Return the keys, (pages, heads, page, D)."""
        return self._memory[0][:-1]

    @property
    def v(self) -> torch.Tensor:
        """Return the values, (pages, heads, page, D)."""
        return self._memory[1][:-1]

    @property
    def free_pages(self) -> int:
        """Return how many pages nobody holds."""
        return len(self._unused)

    def pages_of(self, i: int) -> list[int]:
        """Return the pages that sequence i holds, in the order of its keys."""
        return list(self._held[self._sequence("i", i)])

    def reserve(self, i: int, n: int) -> None:
        """Give sequence i pages for n keys in all; what it has stays."""
        i, n = self._sequence("i", i), check_block("n", n, least=0)
        most = self.table.shape[1] * self.page
        if n > most:
            raise ValueError(f"n: expected at most {most}, the room of a sequence, got {n}")
        missing = -(-n // self.page) - len(self._held[i])
        if missing > len(self._unused):
            raise ValueError(f"n: expected at most {len(self._unused)} pages more, as many as are free,"
                             f" got {missing}")
        self._give(i, [self._take() for _ in range(missing)])

    def free(self, i: int) -> None:
        """Forget sequence i; a page that no other sequence holds is free again."""
        i = self._sequence("i", i)
        for page in self._held[i]:
            self.references[page] -= 1
            if self.references[page] == 0:
                self._unused.append(page)
        self._held[i] = []
        self._give(i, [])
        self.lengths[i] = 0
        self.dropped[i] = 0

    def fork(self, i: int, j: int) -> None:
        """Make sequence j, which must hold nothing, a copy of i that may grow by itself.

        Full pages are shared; the last one, if it is not full, is copied, for both will write there.
        It reads the length of i on the host. Reserve room for j before more is appended to it.
        """
        i, j = self._sequence("i", i), self._sequence("j", j)
        if self._held[j]:
            raise ValueError(f"j: expected a sequence without pages, got {j}, which holds"
                             f" {len(self._held[j])}: free it first")
        length = int(self.lengths[i])
        whole, rest = divmod(length, self.page)
        if rest and not self._unused:
            raise ValueError("i: expected a free page for its last one, which is not full; none is")
        shared = self._held[i][:whole]
        for page in shared:
            self.references[page] += 1
        if rest:
            page = self._take()
            for memory in self._memory:
                memory[page] = memory[self._held[i][whole]]
            shared = [*shared, page]
        self._give(j, shared)
        self.lengths[j] = length
        self.dropped[j] = 0

    def gather(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the keys and values of sequence i in one piece, (heads, length, D) each."""
        length = int(self.lengths[self._sequence("i", i)])
        pages = self._held[i][:-(-length // self.page)]
        return (self.k[pages].transpose(0, 1).flatten(1, 2)[:, :length],
                self.v[pages].transpose(0, 1).flatten(1, 2)[:, :length])

    def _sequence(self, name: str, i) -> int:
        i = check_block(name, i, least=0)
        if i >= len(self._held):
            raise ValueError(f"{name}: expected a sequence from 0 to {len(self._held) - 1}, got {i}")
        return i

    def _take(self) -> int:
        page = self._unused.pop()
        self.references[page] = 1
        return page

    def _give(self, i: int, pages: list[int]) -> None:
        """Add pages to those of a sequence, and write its row of the table anew."""
        held = self._held[i]
        held += pages
        row = held + [-1] * (self.table.shape[1] - len(held))
        self.table[i] = torch.tensor(row, dtype=torch.int32)
        self._reserved[i] = len(held) * self.page

    def _room(self):
        return self._reserved

    def _places(self, at, there):
        run = (at // self.page).clamp(0, self.table.shape[1] - 1).long()
        page = torch.where(there, self.table.gather(1, run), len(self.references))
        return page.long(), (at % self.page).long()
