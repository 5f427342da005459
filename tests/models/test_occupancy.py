"""Programs, waves, idle SMs, schedules and resident blocks, against what counting by hand gives."""

import itertools
import random

import pytest

from flashlib import hardware
from flashlib.masks import mask_of, tile_class, tiles
from flashlib.models import occupancy as oc


def test_programs_of_the_papers_long_sequence():
    shape = dict(batch=1, heads=16, N=16384)
    assert oc.programs(**shape) == 16
    assert oc.programs(**shape, block=128) == 2048
    assert oc.programs(batch=2, heads=3, N=100, block=64) == 12      # ragged tiles count


@pytest.mark.parametrize(("programs", "waves", "last", "idle"), [
    (1, 1, 1, 107), (16, 1, 16, 92), (108, 1, 108, 0), (109, 2, 1, 107), (216, 2, 108, 0),
    (2048, 19, 104, 4)])
def test_waves_on_an_a100(programs, waves, last, idle):
    w = oc.waves(programs, "A100")
    assert (w.waves, w.last, w.idle_sms) == (waves, last, idle)
    assert w.efficiency == pytest.approx(programs / (waves * 108))


def test_two_blocks_per_sm_make_half_the_waves_and_idle_only_below_one_per_sm():
    w = oc.waves(109, "A100", per_sm=2)
    assert (w.slots, w.waves, w.idle_sms) == (216, 1, 0)
    assert oc.waves(217, 108, per_sm=2).idle_sms == 107


def test_a_wave_is_a_schedule_of_equal_programs():
    rng = random.Random(0)
    for _ in range(200):
        n, sms = rng.randint(1, 300), rng.randint(1, 50)
        w, s = oc.waves(n, sms), oc.schedule([7] * n, sms)
        assert s.time == 7 * w.waves
        assert s.efficiency == pytest.approx(w.efficiency)


def test_a_schedule_hands_out_in_order_to_whoever_is_free_first():
    s = oc.schedule([3, 1, 2, 2], 2)
    assert s.runs == ((0, 0, 3), (1, 0, 1), (1, 1, 3), (0, 3, 5))
    assert (s.time, s.work) == (5, 8) and s.efficiency == pytest.approx(0.8)
    assert oc.schedule([], 3).time == 0 and oc.schedule([], 3).efficiency == 1


def test_no_slot_runs_two_programs_at_once_and_no_time_beats_the_bounds():
    rng = random.Random(1)
    for _ in range(100):
        lengths = [rng.randint(1, 30) for _ in range(rng.randint(1, 80))]
        s = oc.schedule(lengths, rng.randint(1, 9))
        for slot in range(s.slots):
            mine = sorted((a, b) for k, a, b in s.runs if k == slot)
            assert all(b <= a for (_, b), (a, _) in itertools.pairwise(mine))
        assert max(max(lengths), -(-sum(lengths) // s.slots)) <= s.time <= (
            sum(lengths) / s.slots + max(lengths))


def test_causal_lengths_are_the_tiles_visited():
    for N, B in ((64, 8), (50, 16), (7, 7)):
        assert oc.causal_lengths(N, B) == oc.tiles_per_program(N, B, B, causal=True)[::-1]
    for N, Br, Bc in ((64, 8, 16), (50, 16, 12)):
        mask = mask_of(True, N, N)
        by_class = [sum(tile_class(mask, r, k) != "skip" for k in tiles(N, Bc))
                    for r in tiles(N, Br)]
        assert oc.tiles_per_program(N, Br, Bc, causal=True) == by_class
    assert oc.tiles_per_program(50, 16, 12) == [5] * 4


def test_one_causal_head_alone_takes_as_long_as_without_a_mask():
    lengths = oc.causal_lengths(4096, 128)
    assert oc.schedule_of(lengths, 1, 108).time == len(lengths) == 32


def test_the_short_cut_for_many_programs_equals_the_schedule():
    rng = random.Random(2)
    tried = 0
    while tried < 25:
        lengths, copies = list(range(rng.randint(1, 60), 0, -1)), rng.randint(1, 400)
        if len(lengths) * copies > 4000:
            tried += 1
            slots = rng.choice([40, 80, 108, 132, 148])
            exact = oc.schedule_of(lengths, copies, slots).time
            assert oc.causal_time(lengths, copies, slots) == exact
            assert oc.causal_time(lengths, copies, slots, exact_up_to=0) == exact


@pytest.mark.parametrize(("d", "Br", "Bc", "warps", "fits"), [
    (64, 128, 128, 4, True), (128, 128, 128, 4, False), (128, 128, 64, 4, True),
    (256, 128, 64, 4, False), (256, 128, 64, 8, True), (256, 128, 128, 8, False)])
def test_the_tiles_that_flash_attention_2_ships_fit_and_the_next_larger_do_not(d, Br, Bc, warps,
                                                                               fits):
    assert oc.block_needs(Br=Br, Bc=Bc, d=d, warps=warps).fits("A100") is fits


def test_block_needs_are_sums_of_tiles():
    need = oc.block_needs(Br=128, Bc=64, d=256, warps=8)
    assert need.shared_bytes == 2 * (128 * 256 + 2 * 64 * 256)
    assert need.accumulator_registers == (128 * 256 + 128 * 64) // 256
    assert need.threads == 256


def test_places_are_limited_by_shared_memory_or_by_registers():
    small, wide = (oc.block_needs(Br=b, Bc=c, d=d) for b, c, d in ((128, 128, 64), (64, 64, 256)))
    assert small.places("A100") == {"shared": 3, "registers": 2}
    assert small.places("H100") == {"shared": 4, "registers": 2}
    assert wide.places("A100") == {"shared": 1, "registers": 3}
    assert wide.places("H100") == {"shared": 2, "registers": 3}


@pytest.mark.parametrize(("gpu", "shared_bytes", "programs"), [
    ("A100", 163 * 1024, 1), ("A100", 163 * 1024 + 1, 0), ("A100", 81 * 1024, 2),  # 2 · (81 + 1) = 164
    ("A100", 81 * 1024 + 1, 1), ("H100", 96 * 1024, 2), ("A100", 96 * 1024, 1),
    ("V100", 48 * 1024, 2), ("T4", 32 * 1024, 2)])                              # nothing is kept there
def test_occupancy_counts_what_the_system_keeps(gpu, shared_bytes, programs):
    found = oc.occupancy(hardware.get(gpu).sm, threads=32, registers=32, shared_bytes=shared_bytes)
    assert found.programs == programs


@pytest.mark.parametrize("needs, programs, limit", [
    (dict(registers=255, shared_bytes=0, threads=128), 2, "registers"),     # 256 × 128 of 65,536
    (dict(registers=168, shared_bytes=0, threads=128), 3, "registers"),
    (dict(registers=32, shared_bytes=0, threads=128), 16, "registers"),     # and 64 warps as well
    (dict(registers=16, shared_bytes=0, threads=32), 32, "slots"),
    (dict(registers=64, shared_bytes=100 << 10, threads=128), 2, "shared memory"),
    (dict(registers=64, shared_bytes=113 << 10, threads=128), 2, "shared memory"),
    (dict(registers=64, shared_bytes=114 << 10, threads=128), 1, "shared memory"),  # with its KiB
    (dict(registers=64, shared_bytes=228 << 10, threads=128), 0, "shared memory"),
    (dict(registers=64, shared_bytes=0, threads=128, tensor_memory_columns=256), 2, "tensor memory"),
])
def test_occupancy_by_hand(needs, programs, limit):
    found = oc.occupancy(hardware.get("H100").sm, **needs)
    assert (found.programs, found.limited_by) == (programs, limit)


def test_registers_come_from_quarters_of_an_sm_and_warps_from_its_generation():
    """80 registers a thread: 6 warps fit into each quarter, 24 in all, not 25."""
    def of(gpu, **needs):
        return oc.occupancy(hardware.get(gpu).sm, shared_bytes=0, **needs).programs

    assert of("H100", threads=32, registers=80) == 24 and of("H100", threads=64, registers=73) == 12
    assert [of(gpu, threads=1024, registers=16) for gpu in ("T4", "RTX 4090", "B200")] == [1, 1, 2]
    assert [of(gpu, threads=32, registers=16) for gpu in ("T4", "RTX 4090", "B200")] == [16, 24, 32]


@pytest.mark.parametrize(("call", "name"), [
    (lambda: oc.programs(batch=0, heads=1, N=1), "batch"),
    (lambda: oc.programs(batch=1, heads=1, N=1, block=0), "block"),
    (lambda: oc.waves(0, "A100"), "programs"),
    (lambda: oc.waves(5, 0), "gpu"),
    (lambda: oc.schedule([1], 0), "slots"),
    (lambda: oc.block_needs(Br=0, Bc=1, d=1), "Br")])
def test_refusals_name_the_argument(call, name):
    with pytest.raises(ValueError, match=f"{name}: expected"):
        call()
