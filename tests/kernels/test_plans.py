"""A launch again: the same arguments, descriptors encoded once, Triton's way where in doubt.

And what is kept: plans without lengths, the launches used last, and what a CUDA graph may read.
"""

import itertools
import threading
import types

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

from flashlib.kernels import plans, problem  # noqa: E402
from flashlib.kernels.backends.triton import BACKEND  # noqa: E402
from flashlib.kernels.problem import CAUSAL, FULL, Problem  # noqa: E402
from flashlib.kernels.recent import Recent  # noqa: E402

META = {"elem_size": 2}


@pytest.fixture(autouse=True)
def driver(monkeypatch, nothing_kept):
    """A GPU that does nothing, and descriptors that encode to what they describe."""
    streams = itertools.count(70)
    active = types.SimpleNamespace(get_current_device=lambda: 3,
                                   get_current_stream=lambda device: (device, next(streams)))
    monkeypatch.setattr(triton.runtime, "driver", types.SimpleNamespace(active=active))
    monkeypatch.setattr(plans, "make_tensordesc_arg",
                        lambda described, meta: ["map", *described, meta["elem_size"]])
    monkeypatch.setattr(plans, "_slow", {})
    monkeypatch.setattr(plans, "_pinned", set())


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
            run, metadata, name = kernel.run, kernel.metadata, "kernel"
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


def describe(x, block):
    return [x.data_ptr(), *x.shape]


def flat(x):
    return ("map", x.data_ptr(), *x.shape, 2)


def some_problem(N_K=16):
    q, k = torch.zeros(1, 1, 4, 16), torch.zeros(1, 1, N_K, 16)
    return Problem.of(q, k, k)


def plan_of(kernel, tensors=(), constants=None, described=(), **more):
    """Return a plan whose grid is the number of keys."""
    return plans.Plan(kernel, tensors, constants or {}, more.pop("sizes", lambda p: {}),
                      lambda p: p.N_K, more.pop("options", {}), {name: [1] for name in described},
                      describe, **more)


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


def attend(q, k, v, window=CAUSAL):
    """Return the launch of a Triton forward on these tensors."""
    return plans.launches_for(BACKEND, Problem.of(q, k, v, window=window), "forward")["forward"]


def qkv(N_K=24, dtype=torch.float32, offset=0):
    x = torch.zeros(1, 2, N_K, 16 + offset, dtype=dtype)[..., offset:]
    return x[:, :, :8], x, x


def test_a_launch_serves_all_tensors_that_lie_alike():
    first = attend(*qkv())
    assert attend(*qkv()) is first
    q, k, v = qkv()
    turned = k.transpose(1, 2).contiguous().transpose(1, 2)      # the same shape, other strides
    others = [(q, turned, v), qkv(dtype=torch.float16), qkv(25), (q, k, v, FULL)]
    found = [attend(*case) for case in others]
    assert len({first, *found}) == 5
    assert [attend(*case) for case in others] == found
    plans.forget()
    assert attend(*qkv()) is not first


def test_a_launch_is_for_one_device_and_one_alignment(gpu):
    q, k, v = qkv()
    one = attend(q, k, v)
    odd = torch.zeros(2 * 24 * 16 + 1)[1:].view(1, 2, 24, 16)
    assert odd.data_ptr() % 16 and attend(q, odd, v) is not one
    assert attend(q, odd, v) is attend(q, odd, v)
    gpu(8, 0)
    assert attend(q, k, v) is not one


def test_lengths_share_a_plan_and_what_was_compiled_for_it():
    kernel = Kernel([], *BACKEND.plan(Problem.of(*qkv()), "forward", BACKEND.table(
        Problem.of(*qkv()), "forward"))["forward"].kernel.arg_names)
    short, long = attend(*qkv(32)), attend(*qkv(64))
    assert short is not long and short.plan is long.plan
    object.__setattr__(short.plan, "kernel", kernel)
    for launch in (short, long, short, long):
        launch(*map(str, range(6)))
    assert len(kernel.bound) == 1 and len(kernel.seen) == 3      # compiled and bound once for both
    assert [args[-len(short.arguments):] for args in kernel.seen[:2]] == [
        tuple(launch.arguments.values()) for launch in (long, short)]


def test_a_length_that_is_compiled_otherwise_is_not_taken_for_another():
    """16 divides one length and not the other, and a length of 1 is a constant of the machine code."""
    kernel = Kernel([], *attend(*qkv(32)).plan.kernel.arg_names)
    for N_K in (32, 33, 1, 17):
        launch = attend(torch.zeros(1, 2, 1, 16), *qkv(N_K)[1:])
        object.__setattr__(launch.plan, "kernel", kernel)
        launch(*map(str, range(6)))
    assert len(kernel.bound) == 3 and len(kernel.seen) == 1


@pytest.mark.parametrize("impl", ["triton", "gluon"])
def test_ten_thousand_growing_lengths_make_no_more_plans_and_keep_no_more_memory(hopper, impl,
                                                                                monkeypatch):
    from flashlib.kernels import backends, scheduling

    backend, made = backends.named(impl), []
    real = backend.plan
    monkeypatch.setattr(type(backend), "plan", lambda self, *a: made.append(1) or real(*a))
    cache = torch.zeros(1, 2, 10_100, 64, dtype=torch.bfloat16)
    q = cache[:, :, :1]
    scheduling.order_table.cache_clear()
    for N_K in range(100, 10_100):
        k = cache[:, :, :N_K]
        launch = plans.launches_for(backend, Problem.of(q, k, k), "forward")["forward"]
        arguments = launch.arguments
        assert (arguments["N_K"] if impl == "gluon" else arguments["sizes"][3]) == N_K
    configurations = 1 if impl == "triton" else 3           # of few keys, of ragged and whole ones
    assert len(made) <= configurations
    assert len(plans._plans) <= configurations
    assert len(problem._seen) <= problem.MOST_PROBLEMS
    assert scheduling.order_table.cache_info().currsize <= 2


def test_the_launch_that_was_not_used_for_longest_is_dropped():
    recent = Recent(3)
    for n in "abc":
        recent[n] = n
    assert [recent.get(n) for n in "ab"] == ["a", "b"]
    recent["d"] = "d"
    assert recent.get("c") is None and set(recent._entries) == set("abd")
    recent["a"] = "A"                                       # over what was there: nothing is dropped
    assert recent.get("a") == "A" and set(recent._entries) == set("abd") and len(recent) == 3


def test_of_many_entries_the_oldest_eighth_goes_at_once():
    recent = Recent(16)
    for n in range(17):
        recent[n] = n
    assert set(recent._entries) == set(range(2, 17))


def test_six_threads_and_more_shapes_than_are_kept():
    """Each finds what was made for its own shape, whatever the others evict meanwhile."""
    threads, rounds, wrong = 6, 700, []
    start = threading.Barrier(threads)

    def work(which):
        start.wait(10)
        try:
            for i in range(rounds):
                q, k, v = (torch.empty(1, 1, 1 + (i * threads + which) % 1999, 8) for _ in range(3))
                launch = attend(q, k, v)
                if launch.arguments["sizes"][2] != q.shape[2]:
                    wrong.append(which)
        except Exception as error:
            wrong.append(error)

    running = [threading.Thread(target=work, args=(which,)) for which in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert not wrong and len(problem._seen) <= problem.MOST_PROBLEMS


class OnGPU(torch.Tensor):
    """A table that says it lies on a GPU."""

    is_cuda = True


def table_plan():
    return plan_of(Kernel([], "X", "ORDER"), ("X",),
                   tables={"ORDER": lambda p: torch.zeros(p.N_K).as_subclass(OnGPU)})


def test_what_a_graph_captured_is_never_freed(monkeypatch):
    """Eviction during the capture and after it: the graph reads the table as long as it may run."""
    import gc
    import weakref

    monkeypatch.setattr(plans.Launch, "_lend", lambda self, stream: None)
    captured, other = (plans.Launch(table_plan(), some_problem(n)) for n in (4, 5))
    kept = [weakref.ref(x.tables["ORDER"]) for x in (captured, other)]
    recent = Recent(1)
    recent["captured"] = captured
    captured("warm")                                        # before the capture: nothing to pin
    assert not plans._pinned
    monkeypatch.setattr(plans, "capturing", lambda: True)
    captured("in the graph")
    recent["another shape"] = 1                             # evicts it in the middle of the capture
    monkeypatch.setattr(plans, "capturing", lambda: False)
    other("outside")
    del captured, other
    plans.forget()
    gc.collect()
    assert kept[0]() is not None and kept[1]() is None
    assert len(plans._pinned) == 1


def test_a_launch_without_a_table_has_nothing_to_pin(monkeypatch):
    monkeypatch.setattr(plans, "capturing", lambda: pytest.fail("asked"))
    launch = plans.Launch(plan_of(Kernel([])), some_problem())
    launch()
    assert not plans._pinned


def test_what_was_decided_under_the_old_table_is_not_found_after_it_changed(monkeypatch):
    """A thread reads the table, another changes it, and only then the first keeps its launch."""
    real, q = type(BACKEND).plan, qkv()

    def plan(self, p, direction, config, *more):
        plans.forget()                                      # what `store.keep` does in another thread
        return real(self, p, direction, config, *more)

    monkeypatch.setattr(type(BACKEND), "plan", plan)
    old = attend(*q)
    monkeypatch.setattr(type(BACKEND), "plan", real)
    assert attend(*q) is not old


def test_a_problem_that_is_dropped_takes_its_launches_along():
    import gc
    import weakref

    gone = weakref.ref(Problem.of(*qkv()).made.setdefault("something", plan_of(Kernel([]))))
    attend(*qkv())
    assert gone() is not None
    plans.forget()
    gc.collect()
    assert gone() is None


class Table(OnGPU):
    """One that notes the streams which it is lent to."""

    def record_stream(self, stream):
        streams.append(stream)


streams = []


def test_a_table_is_lent_to_each_stream_that_reads_it(monkeypatch):
    """Its memory is not used anew before they have: so it may be dropped at any time."""
    now = []
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: now[-1])
    plan = plan_of(Kernel([], "X", "ORDER"), ("X",),
                   tables={"ORDER": lambda p: torch.zeros(p.N_K).as_subclass(Table)})
    launch = plans.Launch(plan, some_problem())
    streams.clear()
    triton.runtime.driver.active.get_current_stream = lambda device: now[-1]
    for stream in ("Triton's", 1, 1, 2, 1):
        now.append(stream)
        launch("x")
    assert streams == ["Triton's", 1, 2]


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
