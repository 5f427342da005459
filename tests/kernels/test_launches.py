"""A launch again: the same arguments, descriptors encoded once, Triton's way where in doubt."""

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

from flashlib.kernels import plans  # noqa: E402
from tests.kernels.stub_kernel import META, Kernel, describe, plan_of, some_problem  # noqa: E402

pytestmark = pytest.mark.usefixtures("stub_driver")


def flat(x):
    return ("map", x.data_ptr(), *x.shape, 2)


def test_the_first_launch_is_tritons_and_later_ones_hand_over_encoded_descriptors():
    kernel = Kernel([META], "A", "X", "scale", "what", "BLOCK")
    launch = plans.Launch(plan_of(kernel, ("A", "X", "scale"), {"BLOCK": 64, "what": "tail"}, ("X",),
                                  options={"num_warps": 4}), some_problem(5))
    x, y = torch.zeros(2, 3), torch.zeros(2, 3)
    launch("first", x, 0.5)
    assert kernel.bound == [((5, 1, 1), ("first", describe(x, 1), 0.5, "tail", 64), {"num_warps": 4})]
    assert not kernel.seen
    for stream, (a, b) in enumerate((("second", x), ("third", y), ("fourth", x)), start=70):
        launch(a, b, 0.25)
        assert kernel.seen.pop() == (5, 1, 1, (3, stream), "function", "packed", None, None, None,
                                     a, *flat(b), 0.25, "tail", 64)
    assert len(kernel.bound) == 1 and not kernel.seen
    assert launch.arguments == {"what": "tail", "BLOCK": 64}


def test_a_descriptor_is_encoded_once_for_an_address(monkeypatch):
    encoded = []
    monkeypatch.setattr(plans, "make_tensordesc_arg",
                        lambda described, meta: encoded.append(described) or [described[0]])
    launch = plans.Launch(plan_of(Kernel([META], "X"), ("X",), described=("X",)), some_problem())
    x, y = torch.zeros(4), torch.zeros(4)
    for tensor in (x, x, y, x, y, x[:]):                    # x[:] lies where x lies
        launch(tensor)
    assert encoded == [describe(x, 1), describe(y, 1)]


def test_no_more_addresses_are_kept_than_said(monkeypatch):
    monkeypatch.setattr(plans, "MOST_ADDRESSES", 16)
    encoded = []
    monkeypatch.setattr(plans, "make_tensordesc_arg",
                        lambda described, meta: encoded.append(described[0]) or [described[0]])
    launch = plans.Launch(plan_of(Kernel([META], "X"), ("X",), described=("X",)), some_problem())
    tensors = [torch.zeros(4) for _ in range(17)]
    launch(tensors[0])                                      # Triton's way
    for x in tensors + tensors[2:]:                         # one too many: the two oldest go, not all
        launch(x)
    assert encoded == [x.data_ptr() for x in tensors]
    launch(tensors[1])
    assert encoded[17:] == [tensors[1].data_ptr()]


def test_a_kernel_without_descriptors_is_launched_as_it_is():
    kernel = Kernel([], "X", "strides")
    launch = plans.Launch(plan_of(kernel, ("X",), {"strides": (7, 1)}), some_problem(2))
    for value in ("a", "b"):
        launch(value)
    assert kernel.seen == [(2, 1, 1, (3, 70), "function", "packed", None, None, None, "b", (7, 1))]


@pytest.mark.parametrize("why", ["another launcher", "no metadata", "one not encoded", "no encoder",
                                 "hooks", "one hook"])
def test_where_triton_is_not_as_known_each_launch_goes_its_way(why, monkeypatch):
    metas = {"no metadata": None, "one not encoded": [None]}.get(why, [META])
    kernel = Kernel(metas, "X", odd=why == "another launcher")
    hooks = why in ("hooks", "one hook")
    if why == "hooks":
        monkeypatch.setattr(triton.knobs.runtime.launch_exit_hook, "calls", [print])
    if why == "one hook":
        monkeypatch.setattr(triton.knobs.runtime, "launch_enter_hook", print)
    if why == "no encoder":
        monkeypatch.setattr(plans, "make_tensordesc_arg", None)
    launch = plans.Launch(plan_of(kernel, ("X",), described=("X",)), some_problem())
    tensors = [torch.zeros(n) for n in (4, 5, 6)]
    for x in tensors:
        launch(x)
    assert not kernel.seen
    assert [args for _, args, *_ in kernel.bound] == [(describe(x, 1),) for x in tensors]
    assert (plans.why_slow() is None) == hooks


def test_this_triton_is_known_and_a_kernel_that_goes_slowly_is_named():
    assert plans.why_slow() is None
    plans._slow["some_kernel"] = "its launcher is another"
    assert plans.why_slow() == "some_kernel: its launcher is another"


@pytest.mark.parametrize("what", ["another place", "another look"])
def test_why_slow_says_what_a_new_triton_changed(what, monkeypatch):
    if what == "another place":
        monkeypatch.setattr(plans, "make_tensordesc_arg", None)
    else:
        monkeypatch.setattr(plans, "wrap_handle_tensordesc", lambda launcher, *a: len)
    assert triton.__version__ in plans.why_slow()


def test_a_hook_that_is_set_later_is_called(monkeypatch):
    kernel = Kernel([])
    launch = plans.Launch(plan_of(kernel), some_problem())
    launch()
    launch()
    monkeypatch.setattr(triton.knobs.runtime.launch_enter_hook, "calls", [print])
    launch()
    assert len(kernel.bound) == 2 and len(kernel.seen) == 1


def test_a_hook_of_none_is_none(monkeypatch):
    monkeypatch.setattr(triton.knobs.runtime, "launch_enter_hook", None)
    kernel = Kernel([])
    launch = plans.Launch(plan_of(kernel), some_problem())
    launch()
    launch()
    assert len(kernel.seen) == 1


def test_the_interpreter_binds_the_arguments_each_time():
    seen = []

    class Interpreted:
        arg_names = ("X", "N")

        def __getitem__(self, grid):
            return lambda *args, **options: seen.append((grid, args, options))

    launch = plans.Launch(plan_of(Interpreted(), ("X",), {"N": 1}, options={"num_stages": 2}),
                          some_problem(3))
    launch("a")
    launch("b")
    assert seen == [((3, 1, 1), (x, 1), {"num_stages": 2}) for x in "ab"]


@pytest.mark.parametrize("constants", [{"BLOCK": 1}, {"N": 1, "BLOCK": 1, "other": 1},
                                       {"n": 1, "BLOCK": 1}])
def test_an_argument_too_few_or_unknown_is_named(constants):
    with pytest.raises(TypeError, match=r"^plan: expected arguments for X, N, BLOCK, got X, "):
        plans.Launch(plan_of(Kernel([], "X", "N", "BLOCK"), ("X",), constants), some_problem())


def test_a_launch_makes_its_gpu_the_current_one(gpu, monkeypatch):
    gpu(8, 0)
    import contextlib
    entered = []
    monkeypatch.setattr(torch.cuda, "device",
                        lambda index: entered.append(index) or contextlib.nullcontext())
    launch = plans.Launch(plan_of(Kernel([])), some_problem())
    launch()
    monkeypatch.setattr(plans, "current_device", lambda: 1)
    launch()
    assert entered == [0]
