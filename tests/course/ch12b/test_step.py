"""A step's closed form is what the kernel asks for, in the interpreter and when it is compiled."""

import pytest

from flashlib.course.ch12b import solutions, step


@pytest.mark.parametrize("d", [32, 64, 128])
def test_counts_are_the_interpreters(d):
    pytest.importorskip("torch")
    pytest.importorskip("triton.experimental.gluon")
    from flashlib.course.ch12b.edited_kernels import here

    seen, steps = here(shape=(1, 1, 256, d))[2].counts, 2 * 4
    for name, value in step.counts(d).items():
        held = {"loaded": ("loaded q_desc", "loaded do_desc", "loaded lse_desc", "loaded delta_desc"),
                "added": ("stored sum_desc",)}.get(name, (name,))
        assert sum(seen[key] for key in held) == steps * value, name


@pytest.mark.parametrize("d", [32, 64, 128])
def test_rooms_are_what_is_allocated_but_for_barriers(d):
    pytest.importorskip("triton.experimental.gluon")
    from flashlib import lens
    from flashlib.kernels.configs import GLUON_BACKWARD

    assert step.STAGES[d] == GLUON_BACKWARD[d].STAGES
    total = sum(step.rooms(d).values())
    assert total == solutions.shared_bytes(d, step.STAGES[d])
    made = lens.compile("flash_bwd_fused_hopper_kernel", arch="H100", head_dim=d)
    assert 0 < made.shared_bytes - total < 1024


def test_busiest_units():
    assert step.clocks(128) == {"tensor cores": 2560, "shared memory": 2948, "exponentials": 512}
    assert step.clocks(64)["tensor cores"] > step.clocks(64)["shared memory"]
    assert step.clocks(32)["shared memory"] > step.clocks(32)["tensor cores"]
