"""Planted bugs in what the host does for the Hopper kernels: the order of tiles, and 8-bit operands."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from flashlib.masks import mask_of, tiles  # noqa: E402
from tests.mutants.build import patcher, rebuilt  # noqa: E402
from tests.mutants.catalogue import Mutant  # noqa: E402
from tests.mutants.runner import examine  # noqa: E402

PATHS = {"masks": "masks", "scheduling": "kernels/scheduling", "fp8": "kernels/fp8"}
patched = patcher(PATHS)
SHAPES = ((70, 70, 16, 8), (33, 70, 16, 16), (70, 33, 16, 8), (5, 3, 2, 4), (64, 64, 64, 64))
LENGTHS = [3, 1, 4, 1, 5, 9, 2]


def build(module=None, edits=()):
    """Return the public functions of all modules, made anew, with the edits in one of them."""
    made, modules = SimpleNamespace(), rebuilt(PATHS, patched, module, edits)
    modules["scheduling"].visits = modules["masks"].visits
    for fresh in modules.values():
        vars(made).update({key: value for key, value in vars(fresh).items()
                           if getattr(value, "__module__", None) == fresh.__name__})
    return made


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def check_lengths(built):
    """Key tiles of each query tile, counted from the masks."""
    for (N_Q, N_K, tile_m, block_n), causal in itertools.product(SHAPES, (False, True)):
        mask = mask_of(causal, N_Q, N_K)
        expected = [max(1, sum(not mask.skips(rows, keys) for keys in tiles(N_K, block_n)))
                    for rows in tiles(N_Q, tile_m)]
        window = built.window_of(causal)
        assert built.tile_lengths(window, N_Q, N_K, tile_m, block_n).tolist() == expected


def hands_of(built, order, programs):
    """Return the tiles of each program."""
    owner = built.assign(order, np.array(LENGTHS), programs)
    return [order[owner == program].tolist() for program in range(programs)]


def check_all_tiles(built):
    """Nothing is lost and nothing doubled, in the order and in the hands."""
    for heads, at_once, programs in ((1, 1, 1), (5, 2, 3), (4, 9, 50)):
        order = built.order_tiles(heads, LENGTHS, at_once)
        assert sorted(order) == list(range(heads * len(LENGTHS)))
        assert sorted(itertools.chain(*hands_of(built, order, programs))) == sorted(order)


def check_groups(built):
    """Groups of heads come one after the other."""
    groups = [tile // len(LENGTHS) // 3 for tile in built.order_tiles(5, LENGTHS, 2)]
    assert groups == sorted(groups)


def check_longest_first(built):
    """In a group the longest tiles come first, and of equal ones those of one head together."""
    for tile in itertools.pairwise(built.order_tiles(3, LENGTHS, 1)):
        (a, one), (b, other) = ((LENGTHS[t % len(LENGTHS)], t // len(LENGTHS)) for t in tile)
        assert a > b or (a == b and one <= other)


def check_even(built):
    """Programs differ by at most one longest tile."""
    hands = hands_of(built, built.order_tiles(6, LENGTHS, 1), 5)
    loads = [sum(LENGTHS[tile % len(LENGTHS)] + 1.5 for tile in hand) for hand in hands]
    assert max(loads) - min(loads) <= max(LENGTHS) + 1.5


def check_registers(built):
    """The order of permuted keys: a thread's columns of S are its columns of P."""
    moved = built.permute_keys(torch.arange(32)[:, None])[:, 0].tolist()
    for block, j, t, b in itertools.product((0, 1), (0, 1), range(4), (0, 1)):
        assert moved[16 * block + 4 * t + 2 * j + b] == 16 * block + 8 * j + 2 * t + b


def check_rotation(built):
    """Q and K rotated alike keep QKᵀ, and an outlier is spread over the row."""
    q, k = normal(5, 64).float(), normal(7, 64, seed=1).float()
    assert torch.allclose(built.rotate(q) @ built.rotate(k).T, q @ k.T, atol=1e-4)
    spike = torch.zeros(1, 64)
    spike[0, 9] = 8.0
    assert torch.allclose(built.rotate(spike).abs(), torch.ones(1, 64), atol=1e-5)


def check_signs(built):
    """Constant rows are spread as well, which a Hadamard matrix alone would gather in one column."""
    assert built.rotate(torch.ones(1, 256)).abs().max() < 5


def check_rows(built):
    """Rows come back within half a step, block by block, and the range is used."""
    x = normal(2, 3, 200, 32) * torch.logspace(-6, 6, 200)[:, None]
    x8, scale = built.quantize_rows(x)
    assert scale.shape == (2, 3, 2)
    each = scale.double().repeat_interleave(128, -1)[..., :200, None]
    gap = (x8.double() * each - x).abs()
    assert all((x8[:, :, i:i + 128].double().abs().amax((-1, -2)) == 448).all() for i in (0, 128))
    assert x8.shape == x.shape and (gap <= 1.0001 * torch.maximum(x.abs() / 16, each / 1024)).all()


def check_values(built):
    """V comes back within half a step, column by column, transposed and padded with zeros."""
    v = normal(2, 3, 40, 32) * torch.logspace(-6, 6, 32)
    v8, scale = built.quantize_values(v)
    assert v8.shape == (2, 3, 32, 64) and scale.shape == (2, 3, 32) and v8.is_contiguous()
    each, got = scale.double()[..., None], v8.double()
    total = (v / scale.double()[:, :, None]).abs().sum(-2)
    assert ((got.abs().sum(-1) - total).abs() <= total / 16).all()
    assert ((got * each).abs().amax(-1) - v.abs().amax(-2)).abs().max() <= v.abs().max() / 16
    assert (got.abs().amax(-1) == 448).all()


CHECKS = {name: check for name, check in list(vars().items()) if name.startswith("check_")}


def _bug(name, module, old, new, caught_by, *survives):
    return Mutant(name, module, ((old, new),), caught_by, survives)


MUTANTS = [
    _bug("the mask aligns top left", "masks", "on = np.asarray(rows) + (Nk - Nq)",
         "on = np.asarray(rows)", "check_lengths", "check_all_tiles"),
    _bug("the diagonal key tile is not counted", "masks",
         "window.keys_of(np.minimum(start + Br, Nq) - 1, Nq, Nk)", "window.keys_of(start, Nq, Nk)",
         "check_lengths"),
    _bug("keys behind the end are counted", "masks", "np.clip(on + right + 1, 0, Nk)",
         "np.clip(on + right + 1, 0, None)", "check_lengths"),
    _bug("ragged keys are cut off", "masks", "return -(-hi // Bc) - lo // Bc",
         "return hi // Bc - lo // Bc", "check_lengths"),
    _bug("a tile that sees nothing has no step", "scheduling",
         "np.maximum(visits(window, N_Q, N_K, tile_m, block_n), 1)",
         "np.maximum(visits(window, N_Q, N_K, tile_m, block_n), 0)", "check_lengths"),
    _bug("the last group is cut off", "scheduling", "np.arange(heads * len(lengths))",
         "np.arange(heads // groups * groups * len(lengths))", "check_all_tiles",
         "check_lengths"),
    _bug("groups overlap", "scheduling", "np.arange(heads * len(lengths))",
         "np.append(np.arange(heads * len(lengths)), 0)", "check_all_tiles"),
    _bug("all heads are one group", "scheduling", "head // share * groups", "head * 0", "check_groups",
         "check_all_tiles"),
    _bug("the shortest come first", "scheduling", "-np.asarray(lengths)[tile]",
         "np.asarray(lengths)[tile]", "check_longest_first", "check_all_tiles", "check_groups"),
    _bug("equal tiles of all heads alternate", "scheduling", "np.lexsort((tile, head,",
         "np.lexsort((head, tile,", "check_longest_first", "check_all_tiles", "check_groups"),
    _bug("a program that is busy gets the next tile", "scheduling",
         "(2 * np.asarray(lengths) + HALVES_TO_START)", "(-2 * np.asarray(lengths) - HALVES_TO_START)",
         "check_even", "check_all_tiles"),
    _bug("one program gets all the tiles", "scheduling", "replace(free, free[0] + cost)",
         "replace(free, free[0] + 0 * cost)", "check_even", "check_all_tiles"),
    _bug("a tile is given to nobody", "scheduling", "np.int64, len(taken)) % programs",
         "np.int64, len(taken)) % (programs + 1)", "check_all_tiles", "check_longest_first"),
    _bug("keys stay where they are", "fp8", ".transpose(-4, -3)", "", "check_registers",
         "check_values"),
    _bug("pairs of keys are taken apart", "fp8", ".transpose(-4, -3)", ".transpose(-4, -2)",
         "check_registers", "check_values"),
    _bug("keys are permuted the other way", "fp8", "N // 16, 2, 4, 2, d)", "N // 16, 4, 2, 2, d)",
         "check_registers", "check_values"),
    _bug("values are not permuted", "fp8", "(permute_keys(v) / scale", "(v.roll(1, -1) / scale",
         "check_values"),
    _bug("the Hadamard matrix is not orthogonal", "fp8", "torch.cat([H, -H], 1)",
         "torch.cat([-H, H], 1).abs()", "check_rotation"),
    _bug("the Hadamard matrix is not normalised", "fp8", "H / math.sqrt(d)", "H / 1.0",
         "check_rotation", "check_rows"),
    _bug("no sign is flipped", "fp8", "* 2.0 - 1.0", "* 0.0 + 1.0", "check_signs", "check_rotation"),
    _bug("signs of 0 and 1 erase columns", "fp8", "* 2.0 - 1.0", "* 1.0", "check_rotation"),
    _bug("all blocks have one scale", "fp8", "x.abs().amax((-1, -2)) if per_block",
         "x.abs().amax().expand(B, H, blocks) if per_block", "check_rows", "check_values"),
    _bug("the range of 5-bit exponents is taken", "fp8", "from flashlib.quant import E4M3_MAX",
         "E4M3_MAX = 57344.0",
         "check_values"),
    _bug("half of the range is left unused", "fp8", "from flashlib.quant import E4M3_MAX",
         "E4M3_MAX = 224.0",
         "check_values", "check_registers"),
    _bug("values have a scale per head only", "fp8", "v.abs().amax(-2) if per_block",
         "v.abs().amax((-1, -2))[..., None].expand(B, H, d) if per_block", "check_values",
         "check_rows"),
    _bug("values are padded to 16 keys", "fp8", "-N % 32", "-N % 16 - 0", "check_values"),
]

TestMutants = examine(MUTANTS, CHECKS, build, at_least=26, patched=patched)
