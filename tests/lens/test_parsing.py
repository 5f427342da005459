"""What the lens reads from the tools' words, and occupancy by hand: no Triton needed."""

from types import SimpleNamespace

import pytest

from flashlib import hardware
from flashlib.lens import assembly, lines, signatures, worker
from flashlib.lens.targets import ARCHS, arch_of

LOG = """ptxas info    : 11 bytes gmem
ptxas info    : (C7512) Potential Performance Loss: wgmma.mma_async instructions are serialized
ptxas info    : Compiling entry function 'k' for 'sm_90a'
    80 bytes stack frame, 72 bytes spill stores, 68 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 80 bytes cumulative stack size
"""
SASS = """	//## File "/a/b/one.py", line 7
        /*0000*/                   LDG.E.128 R4, desc[UR4][R2.64] ;
        /*0010*/              @!P0 LDGSTS.E.BYPASS.128 [R8], desc[UR4][R2.64] ;
	//## File "/a/b/two.py", line 9
        /*0020*/                   LDSM.16.M88.4 R100, [R8] ;
        /*0024*/                   LDSM.16.M88.2 R100, [R8] ;
        /*0028*/                   LDSM.16.M88 R100, [R8] ;
        /*0030*/             @UP0 UTMALDG.4D [UR8], [UR4], desc[UR6] ;
        /*0040*/                   HGMMA.64x128x16.F32.BF16 R24, R128, gdesc[UR4].tnspB, R24 ;
        /*0050*/                   HMMA.16816.F32 R24, R128, R2, R24 ;
        /*0060*/                   UTCHMMA gdesc[UR4], gdesc[UR6], tmem[UR8], tmem[UR10], idesc[UR11] ;
        /*0070*/              @!PT LDS.U16 R1, [R2] ;
        /*0080*/                   LDTM.x32 R1, tmem[UR4] ;
        /*0090*/                   STL.64 [R1+0x10], R2 ;
        /*00a0*/                   NOP;
"""


def test_ptxas_report():
    usage = assembly.read_ptxas(LOG)
    assert (usage.registers, usage.spill_store_bytes, usage.spill_load_bytes) == (255, 72, 68)
    assert usage.warnings[0].startswith("(C7512) Potential Performance Loss")
    with pytest.raises(ValueError, match="log: expected the report"):
        assembly.read_ptxas("nothing")


def test_sass():
    found = assembly.instructions(SASS)
    assert [i.line for i in found[:3]] == [7, 7, 9] and found[-1].opcode == "STL"
    assert assembly.matrix_in_sass(found) == {"HGMMA.64x128x16.F32.BF16": 1, "HMMA.16816.F32": 1,
                                              "UTCHMMA": 1}
    assert assembly.by_width(found, assembly.LOADS) == {
        "LDG 128": 1, "LDGSTS 128": 1, "LDSM 128": 1, "LDSM 64": 1, "LDSM 32": 1, "UTMALDG 4D": 1,
        "LDS 16": 1, "LDTM 1024": 1}
    assert assembly.by_width(found, assembly.STORES) == {"STL 64": 1}
    assert "// two.py:9" in assembly.tidy(SASS)


@pytest.mark.parametrize("instruction, width", [
    ("LDSM.16.M88 R1, [R8]", "LDSM 32"), ("LDSM.16.M88.2 R2, [R8]", "LDSM 64"),
    ("LDSM.16.MT88.4 R4, [R8]", "LDSM 128"), ("LDS R1, [R2]", "LDS 32"),
    ("LDTM R1, tmem[UR4]", "LDTM 32"),
])
def test_the_width_of_a_load(instruction, width):
    found = assembly.instructions(f"        /*0000*/                   {instruction} ;\n")
    assert assembly.by_width(found, assembly.LOADS) == {width: 1}


def test_only_the_whole_number_1_becomes_a_constant():
    """As in Triton's launcher: 1.0 stays a float and True a flag, and 1 does so where it is told to."""
    def parameter(name, **flags):
        default = {"is_constexpr": False, "do_not_specialize": False,
                   "do_not_specialize_on_alignment": False}
        return SimpleNamespace(name=name, **default | flags)

    def fn():
        pass
    fn.params = [parameter(n) for n in ("one", "real", "flag", "even", "odd")]
    fn.params.append(parameter("kept", do_not_specialize=True))
    signature, constants, attributes = worker.specialize(
        fn, {"one": 1, "real": 1.0, "flag": True, "even": 32, "odd": 33, "kept": 1})
    assert signature == {"one": "constexpr", "real": "fp32", "flag": "i1", "even": "i32", "odd": "i32",
                         "kept": "i32"}
    assert constants == {(0,): 1} and list(attributes) == [(3,)]


def test_ptx_matrix_instructions():
    ptx = """
    mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 { %r1 }, { %r2 };
    @%p1 wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%r94}, %rd1, 1;
    tcgen05.mma.cta_group::1.kind::f16 [ %r1 ], %rd1, %rd2, %r3, %p1;
    wgmma.wait_group.sync.aligned 0;
    """
    assert assembly.matrix_in_ptx(ptx) == {
        "mma.sync m16n8k16 f32.bf16.bf16.f32": 1, "wgmma.mma_async m64n64k16 f32.bf16.bf16": 1,
        "tcgen05.mma cta_group::1.kind::f16": 1}


def test_places_are_followed_through_calls_names_and_fusions():
    text = """#loc = loc("/x/k.py":10:0)
module {
    %a = tt.load %p : tensor<4xf32> loc(#loc5)
    %b = arith.addf %a, %a : tensor<4xf32> loc(#loc6)
}
#loc1 = loc("/x/helper.py":3:7)
#loc2 = loc("/x/k.py":12:4)
#loc3 = loc("a"(#loc1))
#loc4 = loc(callsite(#loc3 at #loc2))
#loc5 = loc("y"(#loc4))
#loc6 = loc(fused[#loc2, #loc1])
"""
    (load, _), (add, _) = lines._operations(text)
    assert load == (("helper.py", 3), ("k.py", 12)) and add == (("k.py", 12),)


@pytest.mark.parametrize("arch", ARCHS.values(), ids=str)
def test_the_limits_are_those_of_the_sheets(arch):
    for name in arch.gpus:
        gpu = hardware.get(name)
        assert arch.sm == gpu.sm and gpu.sram_bytes == gpu.sm.shared_per_block_bytes
        assert arch_of(name) is arch
    assert arch_of(arch.name) is arch


def test_builders_call_kernels_with_every_argument_once():
    case = signatures.known("flash_fwd_kernel", ARCHS["sm_90"], {"head_dim": 59, "Nk": 100, "heads": 8,
                                                                 "kv_heads": 2})
    arguments = case.call.arguments
    assert arguments["Q"] == "*bf16" and arguments["USE_TMA"] is False      # rows of 118 bytes
    assert arguments["BLOCKS"][2] == 64 and arguments["EVEN_D"] is False and arguments["RAGGED"] is True
    assert arguments["sizes"][1] == 4 and arguments["stride_k"][0] == 2 * 100 * 59
    assert case.job["options"]["num_warps"] == 4
    assert len({c.key for c in signatures.defaults("sm_90")}) == len(signatures.defaults("sm_90")) == 38
