"""The Gluon kernels for Hopper, compiled for sm_90 without a GPU: what must hold of their code.

Every entry of the tables for Gluon, each under all masks that use it: about a minute on two cores the
first time, and seconds from Triton's cache. `make test` compiles those of 128 columns in bfloat16 and
8 bits, for numbers of keys that no tile divides, where each loop over keys stands twice. The rest is
for `make test-lens`: other heads, other numbers, and float16, which only rounds otherwise, for these.
"""

import functools
import itertools
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

import flashlib.kernels
import flashlib.lens as lens
from flashlib import hardware
from tests.lens.gluon_cases import FP8, HEAD_DIMS, HOPPER, RAGGED, WHOLE, shapes
from tests.lens.toolchain import WORKERS, needs_triton
from tests.mutants.edits import edited

pytest.importorskip("torch")                                # the tables stand beside the launch
pytest.importorskip("triton.experimental.gluon")

pytestmark = [needs_triton, pytest.mark.slow]

NEXT_TILE = "_, _, {0} = read_entry(work.order, nth + 1)\nnext_begin, _, _, next_end = key_tiles({0},"
CARRIES_NOTHING = ((NEXT_TILE.format("start"), NEXT_TILE.format("upcoming")),)
SOURCE = Path(flashlib.kernels.__file__).parent / "gluon" / "forward.py"
# Keys, many and few; at some d there are other entries for few, in 16 bits.
KEYS = {"ragged": (RAGGED, 1000), "whole": (WHOLE, 1024)}
FEW = (64, 128)
AT_ONCE = (("bfloat16", "ragged", (128,)), ("float8_e4m3", "ragged", (128,)))
every_dtype = pytest.mark.parametrize("dtype, keys, heads", [
    pytest.param(dtype, keys, heads, marks=[pytest.mark.matrix] * ((dtype, keys, heads) not in AT_ONCE))
    for dtype, keys in itertools.product(HEAD_DIMS, KEYS) if (dtype, keys) != ("float16", "whole")
    for heads in ((128,), tuple(d for d in HEAD_DIMS[dtype] if d != 128))])


@functools.cache
def compiled(dtype, keys, heads):
    """Return (case, report) for the entries of a dtype's table of such heads, under every mask."""
    kernel, (many, few) = FP8 if dtype == "float8_e4m3" else HOPPER, KEYS[keys]
    cases = [lens.request(kernel, arch="H200", dtype=dtype, head_dim=head_dim, causal=causal, Nk=Nk)
             for head_dim, causal in itertools.product(heads, (False, True))
             for Nk in ((many, few) if kernel == HOPPER and head_dim in FEW else (many,))]
    return list(zip(cases, lens.compile_many(cases, workers=WORKERS), strict=True))


def head_dim(case):
    """Return the columns of a tile of Q, "tensordesc<bf16[1, 1, 64, 128]>"."""
    return int(re.search(r"(\d+)\]", case.call.arguments["q_desc"])[1])


@every_dtype
def test_every_entry_of_the_tables_is_compiled(dtype, keys, heads):
    from flashlib.kernels.configs import FP8 as FP8_CONFIGS
    from flashlib.kernels.configs import GLUON, gluon_config_for

    fp8 = dtype == "float8_e4m3"
    found = {(head_dim(case), *(case.call.arguments[name] for name in ("IS_CAUSAL", "RAGGED")))
             for case, _ in compiled(dtype, keys, heads)}
    assert found == {(d, causal, keys == "ragged") for d, _ in (FP8_CONFIGS if fp8 else GLUON)
                     for causal in (False, True) if (d == 128) == (heads == (128,))}
    for case, _ in () if fp8 else compiled(dtype, keys, heads):
        a = case.call.arguments
        table = gluon_config_for(head_dim(case), a["IS_CAUSAL"], a["N_K"])
        for name in set(table._fields) & set(a):
            assert a[name] == getattr(table, name), f"{case}: {name}"


@every_dtype
def test_nothing_spills(dtype, keys, heads):
    bad = [f"{case}, {case.call.arguments['N_K']} keys: {report.spill_store_bytes} B stored,"
           f" {report.spill_load_bytes} B loaded"
           for case, report in compiled(dtype, keys, heads) if report.spills]
    assert not bad, "\n".join(bad)


@every_dtype
def test_ptxas_warns_of_nothing(dtype, keys, heads):
    """C7512 and its kin: wgmma that wait for each other, or a setmaxnreg that does not count."""
    assert not {str(case): r.warnings for case, r in compiled(dtype, keys, heads) if r.warnings}


@pytest.mark.parametrize("causal", [pytest.param(False, marks=pytest.mark.matrix), True])
@pytest.mark.parametrize("D", [96, 192])
def test_columns_are_made_in_pieces(D, causal):
    """Half of the columns and a quarter; nothing spills, and no product waits for another."""
    names = ["fwd", *(("bwd_fused",) if D == 96 else ("bwd_dkdv", "bwd_dq"))]
    cases = [lens.request(f"flash_{name}_hopper_kernel", head_dim=D, causal=causal) for name in names]
    for report in lens.compile_many(cases, workers=WORKERS):
        assert not report.spills and not report.warnings, report.label
        assert shapes(report) == ({"m64n64k16", "m64n32k16"} if D == 96 else
                                  {"m64n64k16", "m64n128k16"}), report.label


@every_dtype
def test_shared_memory_suffices(dtype, keys, heads):
    for case, report in compiled(dtype, keys, heads):
        assert report.shared_bytes <= hardware.get("H200").sram_bytes == 232_448, str(case)
        assert report.occupancy("H200").programs >= 1, str(case)


@every_dtype
def test_matrix_instructions_have_the_shapes_of_the_tiles(dtype, keys, heads):
    name, depth = ("QGMMA", 32) if dtype == "float8_e4m3" else ("HGMMA", 16)
    for case, report in compiled(dtype, keys, heads):
        a = case.call.arguments
        assert shapes(report) == {f"m64n{n}k{depth}" for n in (a["BLOCK_N"], head_dim(case))}, str(case)
        assert report.matrix_family == "wgmma"
        in_sass = [found for found in report.matrix_instructions if "MMA." in found]
        assert in_sass and all(found.startswith(f"{name}.64x") for found in in_sass), str(case)


@every_dtype
def test_tiles_come_and_go_by_the_copy_engine(dtype, keys, heads):
    for case, report in compiled(dtype, keys, heads):
        assert re.search(r"cp\.async\.bulk\.tensor\.4d\.shared\S*\.global", report.ptx), str(case)
        assert re.search(r"cp\.async\.bulk\.tensor\.4d\.global\.shared", report.ptx), str(case)
        assert report.loads_by_width["UTMALDG 4D"] and report.stores_by_width["UTMASTG 4D"], str(case)
        # the lse, 32 bits a row, is all that leaves otherwise
        assert not set(report.stores_by_width) & {"STG 16", "STG 64", "STG 128"}, str(case)


@every_dtype
def test_registers_move_from_the_producer_to_the_consumers(dtype, keys, heads):
    for case, report in compiled(dtype, keys, heads):
        consumers = case.call.arguments["CONSUMERS"]
        registers = 160 if consumers == 3 else 224 if head_dim(case) == 256 else 232
        cap = case.call.options["maxnreg"]
        assert report.registers <= cap, str(case)
        taken = [int(n) for n in re.findall(r"setmaxnreg\.inc\S*\s+(\d+)", report.ptx)]
        given = [int(n) for n in re.findall(r"setmaxnreg\.dec\S*\s+(\d+)", report.ptx)]
        assert registers in taken and min(given) < cap, str(case)
        assert report.instructions["USETMAXREG"] >= consumers + 1, str(case)
        # whole warpgroups; 65,536 registers are there, and a thread of the producer keeps its own
        warpgroups = report.warps // 4
        assert warpgroups == consumers + 1
        assert 128 * (consumers * registers + min(given)) <= 65_536, str(case)


def outermost_with_products(ttgir):
    """Yield (header, body) of the outermost loops that multiply: one for each consumer."""
    lines, i = ttgir.splitlines(), 0
    while i < len(lines):
        if head := re.match(r"(\s+)%\S+ = scf\.for ", lines[i]):
            last = next(j for j in range(i + 1, len(lines)) if lines[j].startswith(f"{head[1]}}}"))
            body = lines[i + 1:last]
            if any("ttng.warp_group_dot " in line for line in body):
                yield lines[i], body
            i = last
        i += 1


def origins(value, body):
    """Return all values that `value` comes from, by way of the operations of a loop's body."""
    defined = {}
    for line in body:
        if found := re.match(r"\s+(%[\w]+)(?::\d+)? = (.*)", line):
            defined[found[1]] = re.findall(r"%\w+", found[2].split(" loc(")[0])
    seen, todo = set(), [value]
    while todo:
        name = todo.pop()
        if name not in seen:
            seen.add(name)
            todo += defined.get(name, [])
    return seen


def require_carried(case, report):
    """Raise AssertionError unless each consumer hands its variables on to the next query tile."""
    a = case.call.arguments
    loops = list(outermost_with_products(report.ttgir))
    assert len(loops) == a["CONSUMERS"]
    for header, body in loops:
        carried = [pair.split(" = ") for pair in
                   re.search(r"iter_args\((.*?)\) ->", header)[1].split(", ")]
        kinds = re.findall(r"i32|f32|tensor<[x\d]+\w+", re.search(r"-> \((.*)\)\s+:", header)[1])
        end = next(line for line in reversed(body) if "scf.yield" in line)
        results = re.search(r"scf\.yield (.*?) :", end)[1].split(", ")
        # P, the maximum and the sum of its rows, with a TAU for each of the four threads that share one
        # (in 8 bits logits instead); slot, phase; if causal, the tile's first row, which the 8-bit
        # kernel reads anew
        fp8 = case.call.arguments["q_desc"].startswith("tensordesc<fp8")
        starts = a["IS_CAUSAL"] and not fp8
        kept = {f"tensor<64x{a['BLOCK_N']}xf32": 1, "i32": 2 + starts}
        kept |= {} if fp8 else {"tensor<64x4xf32" if a["TAU"] else "tensor<64xf32": 2}
        assert Counter(kinds) == kept
        for (name, start), result in zip(carried, results, strict=True):
            assert result not in (name, start), f"{name} never changes"
        loads = {m[1] for line in body
                 if (m := re.match(r"\s+(%\w+) = tt\.load .*: !tt\.ptr<i32>", line))}
        tiles = [name for (name, _), result in zip(carried, results, strict=True) if result in loads]
        assert len(tiles) == starts, "the first row of the next tile is not carried"
        nth = re.search(r"scf\.for (%\w+) =", header)[1]
        stores = [line for line in body if "async_tma_copy_local_to_global" in line]
        assert stores
        for line in stores:                                 # where O goes is read anew for each tile
            row = re.search(r"\[(%\w+), (%\w+), (%\w+), %\w+\]", line)[3]
            assert nth in origins(row, body), "O goes where the first tile was"
        bounds = [m[1] for line in body if (m := re.search(r"scf\.for \S+ = \S+ to (%\w+) ", line))]
        assert len(bounds) == (2 if a["IS_CAUSAL"] or a["RAGGED"] else 1)
        if a["IS_CAUSAL"]:                                  # how many key tiles, and how many masked
            tile = tiles[0] if starts else nth
            assert all(tile in origins(bound, body) for bound in bounds), "all tiles are the first"


@every_dtype
def test_the_loop_over_query_tiles_carries_its_variables(dtype, keys, heads):
    """Triton's front end once took what a loop assigns for a constant of the first round."""
    for case, report in compiled(dtype, keys, heads):
        require_carried(case, report)


def test_a_loop_that_does_not_carry_the_tile_would_be_noticed():
    changed = edited(SOURCE.read_text(encoding="utf-8"), CARRIES_NOTHING, name=SOURCE.name)
    case = replace(lens.request(HOPPER, arch="H200", causal=True),
                   where={"attribute": HOPPER, "source": changed})
    [report] = lens.compile_many([case])
    with pytest.raises(AssertionError):
        require_carried(case, report)
