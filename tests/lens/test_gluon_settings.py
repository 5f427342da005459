"""What each choice makes of the Gluon kernels' code: windows, turns, emulation, a stale maximum.

Settings that no table has, for `make test-lens`.
"""

import functools
import itertools
import re

import pytest

import flashlib.lens as lens
from tests.lens.gluon_cases import (
    FP8,
    HEAD_DIMS,
    HOPPER,
    PIPELINED,
    RAGGED,
    WHOLE,
    compile_each,
    compile_one,
    shapes,
)
from tests.lens.toolchain import WORKERS, needs_triton

pytest.importorskip("torch")                                # the tables stand beside the launch
pytest.importorskip("triton.experimental.gluon")

pytestmark = [needs_triton, pytest.mark.slow, pytest.mark.matrix]

V3 = {"PING_PONG": True, "UNDER_SOFTMAX": True, "TAU": 0.0}     # without v4's idea, which the table has


def exponentials(report):
    return len(re.findall(r"\bex2\.approx", report.ptx))


@pytest.mark.parametrize("kernel, head_dim", [(HOPPER, 64), (HOPPER, 128), (HOPPER, 256), (FP8, 128)])
def test_one_binary_serves_all_heads_and_lengths(kernel, head_dim):
    """So what test_gluon.py says of one shape holds for every other."""
    from flashlib.kernels.configs import FP8 as FP8_CONFIGS
    from flashlib.kernels.configs import gluon_config_for

    dtype = "float8_e4m3" if kernel == FP8 else "bfloat16"
    config = FP8_CONFIGS[head_dim, True] if kernel == FP8 else gluon_config_for(head_dim, True, 4096)
    given = dict(dtype=dtype, head_dim=head_dim, causal=True, config=config)
    found = compile_each(kernel, [given | sizes for sizes in (
        dict(heads=16), dict(heads=12, kv_heads=4), dict(heads=1, Nq=1),
        dict(heads=3, Nq=4001, Nk=8192))])
    assert len({report.ptx for report in found}) == 1


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


@pytest.mark.parametrize("dtype", HEAD_DIMS)
def test_windows_fit_and_spill_nothing_in_a_loop_of_products(dtype):
    """Every entry for windows, with whole and ragged keys; the sides' numbers are in no binary.

    That is seen in bfloat16 and 8 bits, with ragged keys. In float16 at d = 256 a thread keeps six
    words aside, between one query tile and the next.
    """
    kernel = FP8 if dtype == "float8_e4m3" else HOPPER
    cases = {(d, Nk, window): lens.request(kernel, arch="H200", dtype=dtype, head_dim=d, Nk=Nk,
                                           window=window)
             for d in HEAD_DIMS[dtype] for Nk in (WHOLE, RAGGED)
             for window in ((1000, 0), (None, 50))[:2 if Nk == RAGGED and dtype != "float16" else 1]}
    reports = dict(zip(cases, lens.compile_many(list(cases.values()), workers=WORKERS), strict=True))
    for (d, Nk, window), report in reports.items():
        said = f"d={d} {Nk} keys {window}: {report.spill_store_bytes} B spilled, {report.warnings}"
        assert report.fits and not report.warnings, said
        assert report.spill_store_bytes <= (24 if (dtype, d) == ("float16", 256) else 0), said
        loops = list(loops_of_products(report.sass))
        assert loops and not re.search(r"\b(STL|LDL)\b", "\n".join(itertools.chain(*loops))), said
        assert report.matrix_family == "wgmma" and " window " in str(cases[d, Nk, window])
        assert report.ptx == reports[d, Nk, (1000, 0)].ptx, said


def test_ptxas_moves_the_exponentials_below_the_wait_for_p_times_v():
    """As notebook 12 says. An assembler that obeys the source would be news for it."""
    loops = list(loops_of_products(compile_one(**V3).sass))
    assert len(loops) == 2
    for loop in loops:
        waits = [i for i, text in enumerate(loop) if "WARPGROUP.DEPBAR" in text]
        exps = [i for i, text in enumerate(loop) if "MUFU.EX2" in text]
        assert len(waits) == 2 and len(exps) == 66          # 64 of a tile, 2 to rescale by
        assert min(exps) > waits[1]


TURNS = (
    (3, {"head_dim": 64}), (3, {"head_dim": 128, "PING_PONG": True}),
    (3, {"head_dim": 128, "PING_PONG": False}), (3, {"head_dim": 64, "OVERLAP": False, "causal": True}),
    (2, {"head_dim": 256}), (2, {"head_dim": 128, "Nk": 1024}),
    (2, {"head_dim": 128, "Nk": 1024, "PING_PONG": False}))
with_turns = functools.cache(lambda: compile_each(HOPPER, [choices for _, choices in TURNS]))


@pytest.mark.parametrize("consumers, choices", TURNS, ids=str)
def test_turns_have_barriers_of_their_own(consumers, choices):
    """Triton numbers its barriers from 0; a turn is one of the last three, for two warpgroups."""
    report = with_turns()[TURNS.index((consumers, choices))]
    found = {(word, int(number, 16), threads) for word, number, threads in re.findall(
        r"\bBAR\.(SYNC|ARV)\S* (0x[0-9a-f]+)(?:, (0x[0-9a-f]+))?", report.sass)}
    turns = {(word, 13 + c, "0x100") for word in ("SYNC", "ARV") for c in range(consumers)}
    turns = turns if choices.get("PING_PONG", True) else set()
    assert {entry for entry in found if entry[1] >= 13} == turns
    assert all(number <= 5 and threads != "0x100" for _, number, threads in found - turns)


@pytest.mark.parametrize("causal", [False, True])
def test_emulated_exponentials_leave_the_special_function_unit(causal):
    """Of 64 columns a thread and softmax; with a mask the loop without one alone is emulated."""
    consumers, softmaxes, elements = 2, 1 if causal else 3, 128 * 64 // 128
    reports = compile_each(HOPPER, [{"head_dim": 128, "Nk": 1024, "causal": causal, "EMULATED": n}
                                    for n in (0, 1, 2)])
    counts = [exponentials(report) for report in reports]
    quarter = consumers * softmaxes * elements // 4
    assert counts[0] - counts[1] == counts[1] - counts[2] == quarter
    if not causal:                                          # the rest: what to rescale 2 rows by
        assert counts[0] == 4 * quarter + consumers * (softmaxes + 1) * 2
    for n in (1, 2):
        report = reports[n]
        assert report.ptx.count("add.rm.f32") == n * quarter      # shl and add.s32 become one:
        assert len(re.findall(r"\bLEA [^;]* 0x17 |\bIMAD [^;]* 0x800000,", report.sass)) == n * quarter
        assert not report.warnings, report.warnings


@pytest.mark.parametrize("head_dim", [32, 64, 128, 256])
def test_with_a_stale_maximum_a_warp_skips_what_needs_no_rescaling(head_dim):
    always, sometimes = compile_each(HOPPER, [{"head_dim": head_dim, "TAU": tau} for tau in (0.0, 8.0)])
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


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("consumers, choices", [
    (2, {"head_dim": 128, "Nk": 1024}), (3, {"head_dim": 128}), (2, {"head_dim": 256})], ids=str)
def test_with_a_stale_maximum_threads_meet_only_where_one_grows(consumers, choices, causal):
    always, sometimes = compile_each(HOPPER, [choices | {"TAU": tau, "causal": causal}
                                              for tau in (0, 8)])
    steps = consumers * (3 + causal)                        # first, last, loops
    met = r"vote\.sync\.any\.pred grows, grows, -1;.*?@!grows bra\.uni DONE;(.*?)DONE:"
    blocks = re.findall(met, sometimes.ptx, re.S)
    assert len(blocks) == steps and all(block.count("shfl.sync.bfly") == 4 for block in blocks)
    # two rows of a thread, two steps each: of a maximum, and of a sum; with a stale one, once a tile
    assert always.ptx.count("shfl.sync.bfly") == 8 * steps
    assert re.sub(met, "", sometimes.ptx, flags=re.S).count("shfl.sync.bfly") == consumers * 8


@pytest.mark.parametrize("overlap", [True, False])
def test_the_pipelined_kernel_compiles(overlap):
    report = compile_one(PIPELINED, OVERLAP=overlap)
    assert shapes(report) == {"m64n128k16"} and report.fits and not report.warnings
    assert report.loads_by_width["UTMALDG 4D"] and report.stores_by_width["UTMASTG 4D"]
    assert report.warps == 8 and "setmaxnreg" not in report.ptx
