"""What two problems must not share: a plan, a descriptor, or the alignment that a kernel relies on."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from flashlib.kernels import plans  # noqa: E402
from flashlib.kernels.backends.triton import BACKEND  # noqa: E402
from flashlib.kernels.delta import statistics  # noqa: E402
from flashlib.kernels.problem import Problem  # noqa: E402

pytestmark = pytest.mark.usefixtures("nothing_kept")


def plan(*tensors):
    """Return what is kept for tensors that lie like these: a new launch where nothing is."""
    return plans.launches_for(BACKEND, Problem.of(*tensors), "forward")["forward"]


def heads(*shape, dtype=torch.float16, shift=0):
    """Return a tensor whose address is `shift` elements beyond a multiple of 16 bytes."""
    size = torch.Size(shape).numel()
    room = torch.zeros(size + 16, dtype=dtype)
    start = -room.data_ptr() // dtype.itemsize % (16 // dtype.itemsize) + shift
    return room[start:start + size].view(shape)


def test_two_dtypes_of_one_size_have_plans_of_their_own():
    half, brain = heads(1, 2, 8, 16), heads(1, 2, 8, 16, dtype=torch.bfloat16)
    assert plan(half, half, half) is plan(half, half, half)
    assert plan(half, half, half) is not plan(brain, brain, brain)


@pytest.mark.parametrize("place", range(3))
def test_each_tensor_s_alignment_counts(place):
    aligned = [heads(1, 2, 8, 16) for _ in range(3)]
    shifted = [heads(1, 2, 8, 16, shift=int(i == place)) for i in range(3)]
    assert shifted[place].data_ptr() % 16 == 2
    kept = plan(*aligned)
    assert plan(*shifted) is not kept and plan(*aligned) is kept


@pytest.mark.parametrize("shape, copied", [((1, 2, 64, 64), True), ((1, 2, 1, 64), False)])
def test_where_a_length_is_1_dk_and_dv_take_no_descriptors(shape, copied, hopper):
    """Ptxas 12.8 crashes on the kernel otherwise."""
    long, short = heads(1, 2, 64, 64), heads(*shape)

    def copies(q, k):
        return BACKEND.copies(Problem.of(q, k, k, q, q), "backward")

    assert copies(short, long) == (copied, True)
    assert copies(long, short)[0] is copied


def test_row_statistics_come_aligned_and_contiguous():
    """A plan was compiled for aligned ones: lse and its gradient may lie anywhere."""
    for x in (heads(2, 3, 5, dtype=torch.float32, shift=1), heads(2, 5, 3, dtype=torch.float32).mT,
              heads(2, 3, 5, dtype=torch.float32)):
        rows = statistics(x)
        assert rows.data_ptr() % 16 == 0 and rows.is_contiguous() and torch.equal(rows, x)
