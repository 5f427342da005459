"""A launch again: the same arguments, descriptors encoded once, Triton's way where in doubt."""

import itertools
import threading
import types

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

from flashlib.kernels import dispatch  # noqa: E402

META = {"elem_size": 2}


@pytest.fixture(autouse=True)
def driver(monkeypatch):
    """A GPU that does nothing, and descriptors that encode to what they describe."""
    dispatch.forget()
    streams = itertools.count(70)
    active = types.SimpleNamespace(get_current_device=lambda: 3,
                                   get_current_stream=lambda device: (device, next(streams)))
    monkeypatch.setattr(triton.runtime, "driver", types.SimpleNamespace(active=active))
    monkeypatch.setattr(dispatch, "make_tensordesc_arg",
                        lambda described, meta: ["map", *described, meta["elem_size"]])
    yield
    dispatch.forget()


class Kernel:
    """What Triton makes of a kernel: it notes what is launched, and how."""

    function, packed_metadata = "function", "packed"

    def __init__(self, metas, *names, odd=False):
        self.arg_names = names
        self.metadata = types.SimpleNamespace(tensordesc_meta=metas)
        self.seen, self.bound = [], []
        from triton.backends.nvidia.driver import wrap_handle_tensordesc

        def launcher(*args):
            self.seen.append(args)

        signature = {i: "tensordesc<fp16[1, 1]>" for i in range(len(metas or ()))}
        wrapped = wrap_handle_tensordesc(launcher, signature, metas)
        self.run = Run(len if odd else wrapped)             # a built-in function holds nothing

    def __getitem__(self, grid):
        def again(*args):
            self.bound.append((grid, args))

        def first(*args, **options):
            self.bound.append((grid, args, options))
            return Again()

        kernel = self

        class Again:
            run, metadata = kernel.run, kernel.metadata
            function, packed_metadata = kernel.function, kernel.packed_metadata

            def __getitem__(self, grid):
                return again

        return first


class Run:
    """The launcher of a compiled kernel, as Triton's: a call hands on to `launch`."""

    def __init__(self, launch):
        self.launch = launch

    def __call__(self, *args):
        self.launch(*args)


def describe(x):
    return [x.data_ptr(), *x.shape]


def flat(x):
    return ("map", x.data_ptr(), *x.shape, 2)


def test_the_first_launch_is_tritons_and_later_ones_hand_over_encoded_descriptors():
    kernel = Kernel([META], "X", "Y", "factor", "what", "BLOCK")
    launch = dispatch.Launch(kernel, 5, {"BLOCK": 64, "what": "tail"}, {1: describe}, num_warps=4)
    x, y = torch.zeros(2, 3), torch.zeros(2, 3)
    launch("first", x, 0.5)
    assert kernel.bound == [((5, 1, 1), ("first", describe(x), 0.5, "tail", 64), {"num_warps": 4})]
    assert not kernel.seen
    for stream, (a, b) in enumerate((("second", x), ("third", y), ("fourth", x)), start=70):
        launch(a, b, 0.25)
        assert kernel.seen.pop() == (5, 1, 1, (3, stream), "function", "packed", None, None, None,
                                     a, *flat(b), 0.25, "tail", 64)
    assert len(kernel.bound) == 1 and not kernel.seen


def test_a_descriptor_is_encoded_once_for_an_address(monkeypatch):
    encoded = []
    monkeypatch.setattr(dispatch, "make_tensordesc_arg",
                        lambda described, meta: encoded.append(described) or [described[0]])
    launch = dispatch.Launch(Kernel([META]), 1, {}, {0: describe})
    x, y = torch.zeros(4), torch.zeros(4)
    for tensor in (x, x, y, x, y, x[:]):                    # x[:] lies where x lies
        launch(tensor)
    assert encoded == [describe(x), describe(y)]


def test_no_more_addresses_are_kept_than_said(monkeypatch):
    monkeypatch.setattr(dispatch, "KEPT", 2)
    encoded = []
    monkeypatch.setattr(dispatch, "make_tensordesc_arg",
                        lambda described, meta: encoded.append(described[0]) or [described[0]])
    encode = dispatch._encoder(describe, META)
    tensors = [torch.zeros(4) for _ in range(3)]
    for i in (0, 1, 0, 2, 0):                               # the third address clears the two
        assert encode(tensors[i]) == [tensors[i].data_ptr()]
    assert encoded == [tensors[i].data_ptr() for i in (0, 1, 2, 0)]


def test_a_kernel_without_descriptors_is_launched_as_it_is():
    kernel = Kernel([], "X", "strides")
    launch = dispatch.Launch(kernel, 2, {"strides": (7, 1)})
    for value in ("a", "b"):
        launch(value)
    assert kernel.seen == [(2, 1, 1, (3, 70), "function", "packed", None, None, None, "b", (7, 1))]


@pytest.mark.parametrize("why", ["another launcher", "no metadata", "one not encoded", "no encoder",
                                 "hooks", "one hook"])
def test_where_triton_is_not_as_known_each_launch_goes_its_way(why, monkeypatch):
    metas = {"no metadata": None, "one not encoded": [None]}.get(why, [META])
    kernel = Kernel(metas, odd=why == "another launcher")
    if why == "hooks":
        monkeypatch.setattr(triton.knobs.runtime.launch_exit_hook, "calls", [print])
    if why == "one hook":
        monkeypatch.setattr(triton.knobs.runtime, "launch_enter_hook", print)
    if why == "no encoder":
        monkeypatch.setattr(dispatch, "make_tensordesc_arg", None)
    launch = dispatch.Launch(kernel, 1, {}, {0: describe})
    tensors = [torch.zeros(n) for n in (4, 5, 6)]
    for x in tensors:
        launch(x)
    assert not kernel.seen
    assert [args for _, args, *_ in kernel.bound] == [(describe(x),) for x in tensors]


def test_a_hook_that_is_set_later_is_called(monkeypatch):
    kernel = Kernel([])
    launch = dispatch.Launch(kernel, 1, {})
    launch()
    launch()
    monkeypatch.setattr(triton.knobs.runtime.launch_enter_hook, "calls", [print])
    launch()
    assert len(kernel.bound) == 2 and len(kernel.seen) == 1


def test_the_interpreter_binds_the_arguments_each_time():
    seen = []

    class Interpreted:
        arg_names = ("X", "N")

        def __getitem__(self, grid):
            return lambda *args, **options: seen.append((grid, args, options))

    launch = dispatch.Launch(Interpreted(), 3, {"N": 1}, num_stages=2)
    launch("a")
    launch("b")
    assert seen == [((3, 1, 1), (x, 1), {"num_stages": 2}) for x in "ab"]


@pytest.mark.parametrize("constants", [{"N": 1}, {"N": 1, "BLOCK": 2, "D": 3}, {"N": 1, "X": 2}])
def test_a_launch_names_the_last_arguments_of_its_kernel(constants):
    with pytest.raises(TypeError, match=r"^constants: expected the kernel's last arguments, .*, got N"):
        dispatch.Launch(Kernel([], "X", "N", "BLOCK"), 1, constants)


def test_a_plan_serves_all_tensors_that_lie_alike():
    made = []

    def make(*given):
        made.append(given)
        return len(made)

    x, y = torch.zeros(2, 4, 16), torch.zeros(2, 4, 16)
    assert dispatch.plan_for(make, (x, y), True) == dispatch.plan_for(make, (y, x), True) == 1
    turned = torch.zeros(4, 2, 16).transpose(0, 1)          # the same shape, other strides
    different = [((turned, y), True), ((x, y.half()[:1]), True), ((x.half(), y), True),
                 ((x, y), False), ((x[:, :2], y), True)]
    assert [dispatch.plan_for(make, *case) for case in different] == [2, 3, 4, 5, 6]
    assert [dispatch.plan_for(make, *case) for case in different] == [2, 3, 4, 5, 6]
    dispatch.forget()
    assert dispatch.plan_for(make, (x, y), True) == 7


def test_a_hook_of_none_is_none(monkeypatch):
    monkeypatch.setattr(triton.knobs.runtime, "launch_enter_hook", None)
    kernel = Kernel([])
    launch = dispatch.Launch(kernel, 1, {})
    launch()
    launch()
    assert len(kernel.seen) == 1


def test_a_plan_is_for_one_device():
    x = torch.zeros(2, 4)
    elsewhere = types.SimpleNamespace(dtype=x.dtype, device=torch.device("cuda", 1), shape=x.shape,
                                      stride=x.stride, data_ptr=x.data_ptr)
    made = []

    def make(x):
        made.append(x.device)
        return len(made)

    assert [dispatch.plan_for(make, (tensor,)) for tensor in (x, elsewhere, x)] == [1, 2, 1]


def test_a_plan_for_an_odd_address_is_not_kept():
    x = torch.zeros(33)[1:]
    assert x.data_ptr() % 16
    made = []

    def make(x):
        made.append(x)
        return len(made)

    assert [dispatch.plan_for(make, (x,)) for _ in range(2)] == [1, 2]


def test_the_oldest_of_many_plans_is_dropped(monkeypatch):
    monkeypatch.setattr(dispatch, "KEPT", 3)
    made = []

    def make(x):
        made.append(len(x))
        return len(x)

    assert [dispatch.plan_for(make, (torch.zeros(n),)) for n in (1, 2, 3, 4, 4, 3, 2, 1)] == [
        1, 2, 3, 4, 4, 3, 2, 1]
    assert made == [1, 2, 3, 4, 1]


def test_renewed_plans_are_made_anew_and_the_older_stay():
    x, made = torch.zeros(4), []

    def make(x):
        made.append(x)
        return len(made)

    assert [dispatch.plan_for(make, (x,)) for _ in range(2)] == [1, 1]
    dispatch.renew()
    assert [dispatch.plan_for(make, (x,)) for _ in range(2)] == [2, 2]
    assert list(dispatch._plans.values()) == [1, 2]


def test_plans_made_apart_are_gone_after_an_error_too():
    x = torch.zeros(4)
    dispatch.plan_for(len, (x,))
    with pytest.raises(KeyError), dispatch.apart():
        dispatch.plan_for(list, (x,))
        raise KeyError
    assert list(dispatch._plans.values()) == [4]


def test_plans_of_other_threads_are_not_kept_apart():
    x, (inside, made) = torch.zeros(4), (threading.Event(), threading.Event())

    def search():
        with dispatch.apart():
            inside.set()
            assert made.wait(5)
            dispatch.plan_for(list, (x,))

    thread = threading.Thread(target=search)
    thread.start()
    assert inside.wait(5)
    with dispatch.apart():                                  # a second search, ended before the first
        dispatch.plan_for(tuple, (x,))
    dispatch.plan_for(len, (x,))
    made.set()
    thread.join()
    assert list(dispatch._plans.values()) == [4]
