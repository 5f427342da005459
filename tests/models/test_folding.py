"""The closed form of a state's bytes; the interpreter's tests count what the kernel moves."""

from flashlib.models.folding import saved_bytes, state_bytes


def test_a_fold_moves_the_state_twice_and_a_merge_the_new_part_as_well():
    rows, d = 16 * 4096, 128
    assert state_bytes(rows, d) == (rows * d * 4, rows * 4)
    apart = 2 * sum(state_bytes(rows, d)) + saved_bytes(rows, d)
    assert apart == rows * (2 * 4 * (d + 1) + 2 * 2 * d + 2 * 4)
