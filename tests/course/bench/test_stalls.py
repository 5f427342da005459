"""Samples of the program counter are summed by phase, in the innermost loops with products."""

import pytest

from flashlib.course.bench import stalls
from flashlib.course.notebook.data import measurements

STEP = ["SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR4], R2", "@!P0 BRA 0x900",
        "HGMMA.64x128x16.F32.BF16 R24", "FADD R1, R2, R3",
        "WARPGROUP.DEPBAR.LE gsb0, 0x1",
        "FMNMX R1, R2, R3, !PT", "WARPGROUP.DEPBAR.LE gsb0, 0x0",
        "MUFU.EX2 R4, R5", "FMNMX R1, R2, R3, !PT", "MUFU.EX2 R4, R6"]


def page(kernels):
    """Return what `ncu --page source --csv` prints: per kernel, address, source, samples."""
    lines = []
    for instructions in kernels:
        lines += ['"Kernel Name","flash_fwd_hopper_kernel",', '"Address","Source","# Samples"']
        lines += [f'"{address:#x}","      {source}","{samples}"' for address, source, samples
                  in instructions]
    return "\n".join(lines)


def kernel(samples=range(1, 11), source=STEP):
    """Return two consumers' loops inside of a loop over query tiles, and the producer's loop."""
    code, address = [(0x80, "MOV R1, R2", 7)], 0x100
    for _ in range(2):
        first = address
        for text, count in zip(source, samples, strict=True):
            code.append((address, text, count))
            address += 16
        code.append((address, f"@P1   BRA {first:#x}", 0))
        code.append((address + 16, "@P2   BRA 0x80", 0))
        address += 32
    code.append((address, "UTMALDG.4D [UR8], [UR4]", 50))
    code.append((address + 16, f"@P1   BRA {address:#x}", 50))
    code.append((address + 32, "BRA 0x120", 3))             # back from a wait that stands out of line
    return code


def test_phases_begin_at_their_first_instruction_and_keep_the_order():
    steps = stalls.steps(stalls.kernels(page([kernel()]))[0])
    found = [stalls.phases(step, "own_bf16") for step in steps]
    assert len(found) == 2 and found[0] == found[1]
    assert [(p["phase"], p["samples"], p["instructions"], p["exponentials"]) for p in found[0]] == [
        ("ready", 1 + 2, 2, 0), ("issue", 3 + 4, 2, 0), ("scores", 5, 1, 0), ("maximum", 6 + 7, 2, 0),
        ("weights", 8 + 9 + 10, 4, 2)]


def test_cycles_are_shared_out_by_samples_and_add_up_to_a_step():
    B, H, N, _ = stalls.SHAPE
    key_tiles = B * H * (N // 128) * (N // 128)
    rows = stalls.table(page([kernel()]), [key_tiles * 1000], sms=1, variants=("own_bf16",))
    assert sum(row["cycles"] for row in rows) == pytest.approx(1000)
    assert tuple(rows[0]) == measurements("stalls_h200").columns
    assert {row["phase"]: row["cycles"] for row in rows}["scores"] == pytest.approx(1000 * 5 / 55)


def test_what_it_cannot_read_is_refused():
    with pytest.raises(ValueError, match="expected 2 kernels, got 1 and 3"):
        stalls.table(page([kernel()]), [1, 1, 1], sms=1)
    without = [text.replace("MUFU", "FMUL") for text in STEP]
    with pytest.raises(ValueError, match=r"step: expected an instruction like MUFU"):
        stalls.table(page([kernel(source=without)]), [1], sms=1, variants=("own_bf16",))
    with pytest.raises(ValueError, match="expected a loop for each consumer of own_bf16, got 0"):
        stalls.table(page([[(0x10, "MOV R1, R2", 1)]]), [1], sms=1, variants=("own_bf16",))


def test_the_recording_holds_every_phase_of_every_variant_and_their_exponentials():
    recorded = measurements("stalls_h200")
    for variant, phases in stalls.PHASES.items():
        rows = recorded.where(impl=variant).rows
        assert [row["phase"] for row in rows] == list(phases)
        assert sum(row["exponentials"] for row in rows) == 64 + 2      # of a thread: P, and two rows' α
        B, H, N, _ = stalls.SHAPE
        steps = B * H * (N / 128) ** 2 / int(recorded.provenance["sms"])
        assert sum(row["cycles"] for row in rows) == pytest.approx(
            rows[0]["kernel_cycles"] / steps, rel=1e-4)
