"""What is kept of launches: plans without lengths, those used last, and what a CUDA graph may read."""

import threading

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

from flashlib.kernels import plans, problem  # noqa: E402
from flashlib.kernels.backends.triton import BACKEND  # noqa: E402
from flashlib.kernels.problem import CAUSAL, FULL, Problem  # noqa: E402
from flashlib.kernels.recent import Recent  # noqa: E402
from tests.kernels.stub_kernel import Kernel, plan_of, some_problem  # noqa: E402

pytestmark = pytest.mark.usefixtures("stub_driver")


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
        launch(*map(str, range(len(launch.plan.tensors))))
    assert len(kernel.bound) == 1 and len(kernel.seen) == 3      # compiled and bound once for both
    assert [args[-len(short.arguments):] for args in kernel.seen[:2]] == [
        tuple(launch.arguments.values()) for launch in (long, short)]


def test_a_length_that_is_compiled_otherwise_is_not_taken_for_another():
    """16 divides one length and not the other, and a length of 1 is a constant of the machine code."""
    kernel = Kernel([], *attend(*qkv(32)).plan.kernel.arg_names)
    for N_K in (32, 33, 1, 17):
        launch = attend(torch.zeros(1, 2, 1, 16), *qkv(N_K)[1:])
        object.__setattr__(launch.plan, "kernel", kernel)
        launch(*map(str, range(len(launch.plan.tensors))))
    assert len(kernel.bound) == 3 and len(kernel.seen) == 1


def test_a_constexpr_that_lengths_decide_is_compiled_for_each_of_its_values(hopper):
    """One part is the result, several are not: no binary of the one serves the other."""
    from flashlib.kernels.backends import decode

    def split(N_K):
        q, k = torch.empty(1, 32, 1, 128), torch.empty(1, 8, N_K, 128)
        return plans.launches_for(decode.BACKEND, Problem.of(q, k, k), "forward", None, 8)["decode"]

    few, many = split(1024), split(65536)
    assert few.plan is many.plan and few.arguments["WHOLE"] and not many.arguments["WHOLE"]
    assert few._specialization != many._specialization


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
