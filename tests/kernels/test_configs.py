"""The table of tile sizes: which generation reads which part of it."""

import pytest

from flashlib.kernels import configs
from flashlib.kernels.configs import configs_for

GENERATIONS = {                    # compute capability → the table of its 16-bit kernels
    (7, 5): configs.TURING, (8, 0): configs.AMPERE, (8, 6): configs.ADA, (8, 7): configs.AMPERE,
    (8, 9): configs.ADA, (10, 0): configs.BLACKWELL, (10, 3): configs.BLACKWELL,
    (12, 0): configs.GEFORCE_BLACKWELL, (12, 1): configs.GEFORCE_BLACKWELL,
}
HEAD_DIMS = (16, 32, 64, 128, 256)


@pytest.mark.parametrize("D", HEAD_DIMS)
@pytest.mark.parametrize("capability", GENERATIONS, ids=str)
def test_each_generation_reads_its_own_table(capability, D):
    for causal in (False, True):
        assert configs_for(capability, 2, D, causal) is GENERATIONS[capability][D]


@pytest.mark.parametrize("D", HEAD_DIMS)
def test_hopper_s_table_tells_causal_from_full(D):
    for causal in (False, True):
        assert configs_for((9, 0), 2, D, causal) is configs.HOPPER[D, causal]


@pytest.mark.parametrize("D", HEAD_DIMS)
def test_float32_and_the_interpreter_have_tables_of_their_own(D):
    for capability in GENERATIONS | {(9, 0): None}:
        right = configs.TURING_FLOAT32 if capability < (8, 0) else configs.FLOAT32
        assert configs_for(capability, 4, D, False) is right[D]
    assert configs_for(None, 2, D, True) is configs_for(None, 4, D, False) is configs.FLOAT32[D]


@pytest.mark.parametrize("D, entry", [(1, 16), (16, 16), (17, 32), (33, 64), (65, 128), (129, 256)])
def test_a_head_dimension_between_two_entries_takes_the_larger(D, entry):
    assert configs_for((8, 0), 2, D, False) is configs.AMPERE[entry]
