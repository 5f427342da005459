"""The Gluon kernels for Hopper, compiled for sm_90 without a GPU: what must hold of their code.

Every entry of the tables for Gluon, each under all masks that use it: about a minute on two cores the
first time, and seconds from Triton's cache. `make test` compiles bfloat16 and 8 bits; float16 and the
settings that no table has are for `make test-lens`.
"""

import functools
import itertools
import os
import re
import subprocess
import sys
import textwrap
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

import flashlib.kernels
import flashlib.lens as lens
from flashlib import hardware
from flashlib.lens.assembly import matrix_in_ptx
from tests.lens.toolchain import WORKERS, needs_triton
from tests.mutants.edits import edited

pytest.importorskip("torch")                                # the tables stand beside the launch
pytest.importorskip("triton.experimental.gluon")

pytestmark = [needs_triton, pytest.mark.slow]

HOPPER, PIPELINED = "flash_fwd_hopper_kernel", "flash_fwd_pipelined_kernel"
FP8 = "flash_fwd_fp8_kernel"
NEXT_TILE = "_, _, {0} = read_entry(work.order, nth + 1)\nnext_begin, _, _, next_end = key_tiles({0},"
CARRIES_NOTHING = ((NEXT_TILE.format("start"), NEXT_TILE.format("upcoming")),)
SOURCE = Path(flashlib.kernels.__file__).parent / "gluon" / "forward.py"
RAGGED = 4000                                               # keys, divided by no BLOCK_N of a table
WHOLE = 4096
FEW = {64: (1024,), 128: (1024, 1000)}                      # keys for which 16 bits have other entries
HEAD_DIMS = {"bfloat16": (32, 64, 128, 256), "float16": (32, 64, 128, 256),
             "float8_e4m3": (64, 128, 256)}
every_dtype = pytest.mark.parametrize("dtype", [
    pytest.param(dtype, marks=pytest.mark.matrix) if dtype == "float16" else dtype
    for dtype in HEAD_DIMS])


@functools.cache
def compiled(dtype):
    """Return (case, report) for every entry of the table of a dtype, under every mask."""
    kernel = FP8 if dtype == "float8_e4m3" else HOPPER
    cases = [lens.request(kernel, arch="H200", dtype=dtype, head_dim=head_dim, causal=causal, Nk=Nk)
             for head_dim, causal in itertools.product(HEAD_DIMS[dtype], (False, True))
             for Nk in (WHOLE, RAGGED, *(() if kernel == FP8 else FEW.get(head_dim, ())))]
    return list(zip(cases, lens.compile_many(cases, workers=WORKERS), strict=True))


V3 = {"PING_PONG": True, "UNDER_SOFTMAX": True, "TAU": 0.0}     # without v4's idea, which the table has


def compile_one(kernel=HOPPER, **choices):
    """Compile at d = 128, by default for so few keys that two warpgroups have tiles of 128 × 128."""
    return lens.compile(kernel, arch="H200", head_dim=128, **{"Nk": 1024} | choices)


def shapes(report):
    """Return the shapes of the matrix instructions in PTX."""
    return {word for name in matrix_in_ptx(report.ptx) for word in name.split()
            if word.startswith("m64")}


def head_dim(case):
    """Return the columns of a tile of Q, "tensordesc<bf16[1, 1, 64, 128]>"."""
    return int(re.search(r"(\d+)\]", case.call.arguments["q_desc"])[1])


def exponentials(report):
    return len(re.findall(r"\bex2\.approx", report.ptx))


@every_dtype
def test_every_entry_of_the_tables_is_compiled(dtype):
    from flashlib.kernels.configs import FP8 as FP8_CONFIGS
    from flashlib.kernels.configs import GLUON, gluon_config_for

    fp8 = dtype == "float8_e4m3"
    found = {(head_dim(case), *(case.call.arguments[name] for name in ("IS_CAUSAL", "RAGGED")))
             for case, _ in compiled(dtype)}
    masks = set(itertools.product((False, True), repeat=2))
    assert found == {(d, *mask) for d, _ in (FP8_CONFIGS if fp8 else GLUON) for mask in masks}
    for case, _ in () if fp8 else compiled(dtype):
        a = case.call.arguments
        table = gluon_config_for(head_dim(case), a["IS_CAUSAL"], a["N_K"])
        for name in set(table._fields) & set(a):
            assert a[name] == getattr(table, name), f"{case}: {name}"


@every_dtype
def test_nothing_spills(dtype):
    bad = [f"{case}, {case.call.arguments['N_K']} keys: {report.spill_store_bytes} B stored,"
           f" {report.spill_load_bytes} B loaded"
           for case, report in compiled(dtype) if report.spills]
    assert not bad, "\n".join(bad)


@pytest.mark.matrix
@pytest.mark.parametrize("kernel, head_dim", [(HOPPER, 64), (HOPPER, 128), (HOPPER, 256), (FP8, 128)])
def test_one_binary_serves_all_heads_and_lengths(kernel, head_dim):
    """So what the tests above say of one shape holds for every other."""
    from flashlib.kernels.configs import FP8 as FP8_CONFIGS
    from flashlib.kernels.configs import gluon_config_for

    dtype = "float8_e4m3" if kernel == FP8 else "bfloat16"
    config = FP8_CONFIGS[head_dim, True] if kernel == FP8 else gluon_config_for(head_dim, True, 4096)
    found = {lens.compile(kernel, arch="H200", dtype=dtype, head_dim=head_dim, causal=True,
                          config=config, **sizes).ptx
             for sizes in (dict(heads=16), dict(heads=12, kv_heads=4), dict(heads=1, Nq=1),
                           dict(heads=3, Nq=4001, Nk=8192))}
    assert len(found) == 1


def loops_of_products(sass):
    """Yield the innermost loops of SASS that hold matrix instructions, as lists of instructions.

    A loop ends with a conditional branch backwards; those of waits, out of line, are none.
    """
    labels, code = {}, []
    for line in sass.splitlines():
        if found := re.match(r"\s*(\.L_x_\d+):", line):
            labels[found[1]] = len(code)
        elif found := re.search(r"/\*[0-9a-f]{4,}\*/\s+(.*?);", line):
            code.append(found[1])
    loops = [(labels[found[1]], end) for end, text in enumerate(code)
             if (found := re.match(r"@!?U?P\d+ BRA.*?(\.L_x_\d+)", text))
             and labels.get(found[1], end) < end]
    loops = [loop for loop in loops if any("GMMA" in text for text in code[slice(*loop)])]
    for start, end in loops:
        if not any(start <= a and b <= end and (a, b) != (start, end) for a, b in loops):
            yield code[start:end]


@pytest.mark.matrix
@pytest.mark.parametrize("dtype", HEAD_DIMS)
def test_windows_fit_and_spill_nothing_in_a_loop_of_products(dtype):
    """Every entry for windows, with whole and ragged keys; the sides' numbers are in no binary.

    In float16 at d = 256 a thread keeps six words aside, between one query tile and the next.
    """
    kernel = FP8 if dtype == "float8_e4m3" else HOPPER
    cases = {(d, Nk, window): lens.request(kernel, arch="H200", dtype=dtype, head_dim=d, Nk=Nk,
                                           window=window)
             for d in HEAD_DIMS[dtype] for Nk in (WHOLE, RAGGED)
             for window in ((1000, 0), (None, 50))}
    reports = dict(zip(cases, lens.compile_many(list(cases.values()), workers=WORKERS), strict=True))
    for (d, Nk, window), report in reports.items():
        said = f"d={d} {Nk} keys {window}: {report.spill_store_bytes} B spilled, {report.warnings}"
        assert report.fits and not report.warnings, said
        assert report.spill_store_bytes <= (24 if (dtype, d) == ("float16", 256) else 0), said
        loops = list(loops_of_products(report.sass))
        assert loops and not re.search(r"\b(STL|LDL)\b", "\n".join(itertools.chain(*loops))), said
        assert report.matrix_family == "wgmma" and " window " in str(cases[d, Nk, window])
        assert report.ptx == reports[d, Nk, (1000, 0)].ptx, said


@pytest.mark.matrix
def test_ptxas_moves_the_exponentials_below_the_wait_for_p_times_v():
    """As notebook 12 says. An assembler that obeys the source would be news for it."""
    loops = list(loops_of_products(compile_one(**V3).sass))
    assert len(loops) == 2
    for loop in loops:
        waits = [i for i, text in enumerate(loop) if "WARPGROUP.DEPBAR" in text]
        exps = [i for i, text in enumerate(loop) if "MUFU.EX2" in text]
        assert len(waits) == 2 and len(exps) == 66          # 64 of a tile, 2 to rescale by
        assert min(exps) > waits[1]


@pytest.mark.matrix
@pytest.mark.parametrize("consumers, choices", [
    (3, {"head_dim": 64}), (3, {"head_dim": 128, "PING_PONG": True}),
    (3, {"head_dim": 128, "PING_PONG": False}), (3, {"head_dim": 64, "OVERLAP": False, "causal": True}),
    (2, {"head_dim": 256}), (2, {"head_dim": 128, "Nk": 1024}),
    (2, {"head_dim": 128, "Nk": 1024, "PING_PONG": False})], ids=str)
def test_turns_have_barriers_of_their_own(consumers, choices):
    """Triton numbers its barriers from 0; a turn is one of the last three, for two warpgroups."""
    report = lens.compile(HOPPER, arch="H200", **choices)
    found = {(word, int(number, 16), threads) for word, number, threads in re.findall(
        r"\bBAR\.(SYNC|ARV)\S* (0x[0-9a-f]+)(?:, (0x[0-9a-f]+))?", report.sass)}
    turns = {(word, 13 + c, "0x100") for word in ("SYNC", "ARV") for c in range(consumers)}
    turns = turns if choices.get("PING_PONG", True) else set()
    assert {entry for entry in found if entry[1] >= 13} == turns
    assert all(number <= 5 and threads != "0x100" for _, number, threads in found - turns)


@every_dtype
def test_ptxas_warns_of_nothing(dtype):
    """C7512 and its kin: wgmma that wait for each other, or a setmaxnreg that does not count."""
    assert not {str(case): r.warnings for case, r in compiled(dtype) if r.warnings}


@every_dtype
def test_shared_memory_suffices(dtype):
    for case, report in compiled(dtype):
        assert report.shared_bytes <= hardware.get("H200").sram_bytes == 232_448, str(case)
        assert report.occupancy("H200").programs >= 1, str(case)


@every_dtype
def test_matrix_instructions_have_the_shapes_of_the_tiles(dtype):
    name, depth = ("QGMMA", 32) if dtype == "float8_e4m3" else ("HGMMA", 16)
    for case, report in compiled(dtype):
        a = case.call.arguments
        assert shapes(report) == {f"m64n{n}k{depth}" for n in (a["BLOCK_N"], head_dim(case))}, str(case)
        assert report.matrix_family == "wgmma"
        in_sass = [found for found in report.matrix_instructions if "MMA." in found]
        assert in_sass and all(found.startswith(f"{name}.64x") for found in in_sass), str(case)


@every_dtype
def test_tiles_come_and_go_by_the_copy_engine(dtype):
    for case, report in compiled(dtype):
        assert re.search(r"cp\.async\.bulk\.tensor\.4d\.shared\S*\.global", report.ptx), str(case)
        assert re.search(r"cp\.async\.bulk\.tensor\.4d\.global\.shared", report.ptx), str(case)
        assert report.loads_by_width["UTMALDG 4D"] and report.stores_by_width["UTMASTG 4D"], str(case)
        # the lse, 32 bits a row, is all that leaves otherwise
        assert not set(report.stores_by_width) & {"STG 16", "STG 64", "STG 128"}, str(case)


@every_dtype
def test_registers_move_from_the_producer_to_the_consumers(dtype):
    for case, report in compiled(dtype):
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
def test_the_loop_over_query_tiles_carries_its_variables(dtype):
    """Triton's front end once took what a loop assigns for a constant of the first round."""
    for case, report in compiled(dtype):
        require_carried(case, report)


def test_a_loop_that_does_not_carry_the_tile_would_be_noticed():
    changed = edited(SOURCE.read_text(encoding="utf-8"), CARRIES_NOTHING, name=SOURCE.name)
    case = replace(lens.request(HOPPER, arch="H200", causal=True),
                   where={"attribute": HOPPER, "source": changed})
    [report] = lens.compile_many([case])
    with pytest.raises(AssertionError):
        require_carried(case, report)


@pytest.mark.matrix
@pytest.mark.parametrize("causal", [False, True])
def test_emulated_exponentials_leave_the_special_function_unit(causal):
    """Of 64 columns a thread and softmax; with a mask the loop without one alone is emulated."""
    consumers, softmaxes, elements = 2, 1 if causal else 3, 128 * 64 // 128
    counts = [exponentials(compile_one(causal=causal, EMULATED=n)) for n in (0, 1, 2)]
    quarter = consumers * softmaxes * elements // 4
    assert counts[0] - counts[1] == counts[1] - counts[2] == quarter
    if not causal:                                          # the rest: what to rescale 2 rows by
        assert counts[0] == 4 * quarter + consumers * (softmaxes + 1) * 2
    for n in (1, 2):
        report = compile_one(causal=causal, EMULATED=n)
        assert report.ptx.count("add.rm.f32") == n * quarter      # shl and add.s32 become one:
        assert len(re.findall(r"\bLEA [^;]* 0x17 |\bIMAD [^;]* 0x800000,", report.sass)) == n * quarter
        assert not report.warnings, report.warnings


@pytest.mark.matrix
@pytest.mark.parametrize("head_dim", [32, 64, 128, 256])
def test_with_a_stale_maximum_a_warp_skips_what_needs_no_rescaling(head_dim):
    always, sometimes = (lens.compile(HOPPER, arch="H200", head_dim=head_dim, TAU=tau)
                         for tau in (0.0, 8.0))
    registers = head_dim // 2                               # of O, in each of 128 threads
    at_once = min(registers, 64)
    loops = always.warps // 4 - 1                          # a consumer each
    blocks = re.findall(r"vote\.sync\.any\.pred some, some, 0xffffffff; @!some bra\.uni DONE;"
                        r"(.*?)DONE:", sometimes.ptx, re.S)
    assert len(blocks) == loops * registers // at_once and "vote.sync" not in always.ptx
    assert sometimes.ptx.count("setp.neu") >= 2 * len(blocks)         # NaN, too, is not 1
    for block in blocks:
        products = re.findall(r"mul\.f32 (%\w+), (%\w+), (%\w+);", block)
        assert len(products) == at_once and all(to == x for to, x, _ in products)
        factors = [factor for _, _, factor in products]
        assert len(set(factors)) == 2                       # two rows, which the vote has asked about
        assert {factors[0], factors[2]} == set(factors)
    assert not sometimes.warnings and sometimes.fits


@pytest.mark.matrix
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("consumers, choices", [
    (2, {"head_dim": 128, "Nk": 1024}), (3, {"head_dim": 128}), (2, {"head_dim": 256})], ids=str)
def test_with_a_stale_maximum_threads_meet_only_where_one_grows(consumers, choices, causal):
    always, sometimes = (lens.compile(HOPPER, arch="H200", **choices, TAU=tau, causal=causal)
                         for tau in (0, 8))
    steps = consumers * (3 + causal)                        # first, last, loops
    met = r"vote\.sync\.any\.pred grows, grows, -1;.*?@!grows bra\.uni DONE;(.*?)DONE:"
    blocks = re.findall(met, sometimes.ptx, re.S)
    assert len(blocks) == steps and all(block.count("shfl.sync.bfly") == 4 for block in blocks)
    # two rows of a thread, two steps each: of a maximum, and of a sum; with a stale one, once a tile
    assert always.ptx.count("shfl.sync.bfly") == 8 * steps
    assert re.sub(met, "", sometimes.ptx, flags=re.S).count("shfl.sync.bfly") == consumers * 8


@pytest.mark.matrix
@pytest.mark.parametrize("overlap", [True, False])
def test_the_pipelined_kernel_compiles(overlap):
    report = compile_one(PIPELINED, OVERLAP=overlap)
    assert shapes(report) == {"m64n128k16"} and report.fits and not report.warnings
    assert report.loads_by_width["UTMALDG 4D"] and report.stores_by_width["UTMASTG 4D"]
    assert report.warps == 8 and "setmaxnreg" not in report.ptx


def test_the_report_holds_every_stage_and_source_lines():
    report = compile_one()
    assert "ttng.warp_group_dot" in report.ttir and "ttng.warp_group_dot" in report.ttgir
    assert f".entry {HOPPER}" in report.ptx and "HGMMA.64x128x16.F32.BF16" in report.sass
    rows = report.side_by_side("acc = warpgroup_mma(p, v").rows
    assert len(rows) == 1 and all(any(word in text for text in getattr(rows[0], stage))
                                  for stage, word in (("ttir", "warp_group_dot"), ("sass", "HGMMA"),
                                                      ("ttgir", "warp_group_dot"), ("ptx", "wgmma")))
    softmax = report.side_by_side("exp2(x)", file="softmax.py").rows
    assert any("MUFU.EX2" in text for row in softmax for text in row.sass)
    assert str(report).startswith(f"{HOPPER} sm_90 bfloat16 d=128 128×128, 2 consumers, 2 stages")


@pytest.mark.parametrize("choices, words", [
    (dict(arch="A100"), r"impl: 'gluon' expected a Hopper GPU .*got compute capability 8\.0"),
    (dict(arch="B200"), r"impl: 'gluon' expected a Hopper GPU .*got compute capability 10\.0"),
    (dict(dtype="float32"), "impl: 'gluon' expected float16 or bfloat16, got torch.float32"),
    (dict(kernel=FP8, dtype="bfloat16"), "dtype, head_dim: FP8 attention expected float8_e4m3"),
    (dict(head_dim=8), "impl: 'gluon' expected a head dimension D of at least 16, got 8"),
    (dict(head_dim=60), "impl: 'gluon' expected q, k and v as the copy engine reads them"),
    (dict(kernel=FP8, head_dim=32), "dtype, head_dim: FP8 attention expected .* 64, 128 or 256, got"),
    (dict(CONSUMERS=4), "CONSUMERS: expected an integer from 2 to 3, got 4"),
    (dict(EMULATED=3), "EMULATED: expected an integer from 0 to 2, got 3"),
    (dict(O_PARTS=4), "O_PARTS: expected a power of 2 from 1 to 2, got 4"),
    (dict(kernel=PIPELINED, CONSUMERS=3), "CONSUMERS: expected 2 without SPECIALIZED, got 3"),
    (dict(STAGES=0), "STAGES: expected an integer from 1 to 16, got 0"),
    (dict(OVERLAP=1), "OVERLAP: expected True or False, got 1"),
    (dict(TAU=-1.0), r"TAU: expected a number from 0 to 8, got -1\.0"),
    (dict(kernel=FP8, OVERLAP=False), "OVERLAP: flash_fwd_fp8_kernel has no such choice"),
    (dict(BLOCK_M=128), "BLOCK_M: flash_fwd_hopper_kernel has no such choice"),
    (dict(kernel=PIPELINED, dtype="float8_e4m3"), "impl: 'gluon' expected float16 or bfloat16, got"),
])
def test_what_the_kernels_cannot_do_is_named(choices, words):
    with pytest.raises(ValueError, match=f"^{words}"):
        lens.request(**{"kernel": HOPPER, "arch": "H200"} | choices)


@pytest.mark.parametrize("options", ["causal=False", "causal=True, fp8", *(
    pytest.param(options, marks=pytest.mark.matrix) for options in (
        "causal=False, few", "causal=True, few", "causal=False, few, SPECIALIZED=False"))])
def test_the_lens_compiles_what_a_launch_would(options, tmp_path):
    """A launch on tensors, through a stub driver, gives the same PTX as the lens by example."""
    causal, pipelined, fp8 = (word in options for word in ("causal=True", "SPECIALIZED", "fp8"))
    N = 1024 if "few" in options else 4096                  # at d = 128 the table has two entries
    script = textwrap.dedent(f"""
        import sys
        import torch, triton
        from triton.backends.compiler import GPUTarget
        from flashlib.kernels import problem
        from flashlib.kernels.backends import gluon
        from flashlib.kernels.plans import Launch

        class Driver:
            utils = type("Utils", (), {{"get_device_properties": lambda self, device: {{}}}})()
            get_current_target = lambda self: GPUTarget("cuda", 90, 32)
            get_current_device = lambda self: 0
            get_current_stream = lambda self, device=None: 0
            get_active_torch_device = lambda self: torch.device("cpu")

        triton.runtime.driver.set_active(Driver())
        device = problem.Device("cuda", 0, (9, 0), 132, "stub")
        problem.device_of = lambda _: device
        problem.Device.place = torch.device("cpu")
        window = problem.CAUSAL if {causal} else problem.FULL
        x = torch.empty(1, 16, {N}, 128, dtype=torch.bfloat16)
        lse = torch.empty(1, 16, {N})
        if {fp8}:
            x, scales = x.to(torch.float8_e4m3fn), [lse] * 3
            v = x.transpose(2, 3).contiguous()
            p = problem.Problem.of(x, x, v, window=window)
            plan = gluon.FP8.plan(p, "forward", gluon.FP8.config(p, "forward"))["forward"]
            o = torch.empty(x.shape, dtype=torch.bfloat16)
            tensors = x, x, v, o
        else:
            p = problem.Problem.of(x, x, x, window=window)
            config = gluon.BACKEND.config(p, "forward")._replace(SPECIALIZED={not pipelined})
            plan = gluon.BACKEND.plan(p, "forward", config)["forward"]
            tensors, scales = [x] * 4, []
        arguments = Launch(plan, p).bound(*tensors, lse, *scales, 0.1)
        kernel = plan.kernel.warmup(*arguments, grid=(1,), **plan.options)
        sys.stdout.write(kernel.asm["ptx"])
        """)
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    env |= {"PYTHONPATH": os.pathsep.join(sys.path), "TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    kernel = FP8 if fp8 else PIPELINED if pipelined else HOPPER
    assert done.stdout == compile_one(kernel, causal=causal, Nk=N).ptx
