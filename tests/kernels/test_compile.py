"""`torch.compile` takes the op whole: no graph break, the same bits, and few recompilations."""

import pytest

torch = pytest.importorskip("torch")

from flashlib.kernels import flash_attention, ops  # noqa: E402
from tests.kernels.problems import Shape, problem, solve  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")           # torch's own, while it traces


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def layer(q, k, v, **options):
    """Attention amid other operations, which a graph break would tear apart."""
    o, lse = flash_attention(q * 2, k + 1, v, return_lse=True, **options)
    return torch.tanh(o) + lse.clamp_min(-9)[..., None].to(o.dtype)


def counted(function, **options):
    """Return the function compiled, and a list that grows by the ops of each graph."""
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd

    graphs = []

    def keep(graph, _):
        graphs.append([str(node.target) for node in graph.graph.nodes])
        return make_boxed_func(graph.forward)

    return torch.compile(function, backend=aot_autograd(fw_compiler=keep, bw_compiler=keep),
                         fullgraph=True, **options), graphs


def test_the_graph_holds_one_forward_and_one_backward():
    compiled, graphs = counted(layer)
    q, k, v = (x.requires_grad_() for x in problem(Shape(1, 2, 1, 20, 30, 8))[:3])
    compiled(q, k, v, causal=True).sum().backward()
    assert len(graphs) == 2
    assert graphs[0].count("flashlib.attention_forward.default") == 1
    assert graphs[1].count("flashlib.attention_backward.default") == 1


@pytest.mark.parametrize("options", [{}, {"causal": True}, {"scale": -0.3, "causal": True},
                                     {"scale": 0.0}, {"impl": "reference"},
                                     {"window": (5, 3)}, {"window": (5, 3), "causal": True}], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_it_equals_eager_bit_for_bit(options, dtype):
    given = problem(Shape(2, 4, 2, 33, 29, 8, True), dtype)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    results = []
    for function in (layer, compiled):
        inputs = [x.clone().requires_grad_() for x in given[:3]]
        out = function(*inputs, **options)
        results.append((out, *torch.autograd.grad(out, inputs, given.do)))
    for x, y in zip(*results, strict=True):
        assert torch.equal(x, y)


def test_without_gradients_and_without_lse():
    given = problem(Shape(1, 2, 2, 9, 9, 8))
    compiled = torch.compile(lambda q, k, v: flash_attention(q, k, v) * 2, backend="aot_eager",
                             fullgraph=True)
    with torch.no_grad():
        assert torch.equal(compiled(*given[:3]), flash_attention(*given[:3]) * 2)


def test_a_gradient_through_lse_alone():
    given = problem(Shape(1, 2, 2, 9, 9, 8))
    grads = []
    for wrap in (lambda f: f, lambda f: torch.compile(f, backend="aot_eager", fullgraph=True)):
        q = given.q.clone().requires_grad_()
        wrap(lambda q: flash_attention(q, *given[1:3], return_lse=True)[1].sum())(q).backward()
        grads.append(q.grad)
    assert torch.equal(*grads)


def test_changing_shapes_recompile_at_most_twice():
    """The first call is static, the second makes sizes dynamic; a third may tell N_q = N_k apart."""
    compiled, graphs = counted(layer)
    for B, Nq, Nk in ((2, 16, 16), (2, 24, 40), (3, 33, 50), (5, 70, 90), (4, 41, 17), (7, 97, 98)):
        given = problem(Shape(B, 2, 1, Nq, Nk, 8))
        inputs = [x.clone().requires_grad_() for x in given[:3]]
        out = compiled(*inputs, causal=True)
        expected = layer(*inputs, causal=True)
        assert torch.equal(out, expected)
        out.backward(given.do)
    assert len(graphs) <= 3 * 2


def test_dynamic_from_the_start_compiles_once():
    compiled, graphs = counted(layer, dynamic=True)
    for B, Nq, Nk in ((7, 16, 20), (3, 33, 50), (5, 70, 90)):    # no two sizes equal at first
        given = problem(Shape(B, 4, 2, Nq, Nk, 8))
        with torch.no_grad():
            assert torch.equal(compiled(*given[:3]), layer(*given[:3]))
    assert len(graphs) == 1


def test_a_changing_window_recompiles_at_most_once_for_each_side():
    """Its bounds become symbols, as sizes do."""
    compiled, graphs = counted(layer)
    q, k, v, *_ = problem(Shape(1, 2, 1, 33, 29, 8))
    with torch.no_grad():
        for window in ((9, 3), (4, 3), (7, 5), (2, 6), (11, 12), (8, 1)):
            assert torch.equal(compiled(q, k, v, window=window), layer(q, k, v, window=window))
    assert len(graphs) <= 3


def test_empty_inputs_compile():
    for shape in (Shape(2, 2, 1, 3, 0, 8), Shape(2, 2, 1, 0, 3, 8)):
        given = problem(shape)
        compiled = torch.compile(flash_attention, backend="aot_eager", fullgraph=True)
        got, expected = (solve(given, f) for f in (compiled, flash_attention))
        for x, y in zip(got, expected, strict=True):
            assert torch.equal(x, y)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16], ids=str)
def test_the_registered_ops_hold_to_torchs_rules(dtype):
    """Schema, fake tensors, autograd and AOT, as torch.library checks them."""
    for window, shape in (((None, None), (2, 4, 2, 5, 7, 8)), ((None, 0), (1, 2, 2, 7, 5, 3)),
                          ((2, 1), (1, 2, 2, 5, 7, 3))):
        given = problem(Shape(*shape), dtype)._replace(window=window)
        inputs = [x.transpose(1, 2).contiguous().transpose(1, 2).requires_grad_()
                  for x in given[:3]]
        o, lse, *_ = solve(given, flash_attention)
        tests = ("test_schema", "test_faketensor", "test_autograd_registration")
        torch.library.opcheck(ops.attention_forward, (*inputs, *window, 0.3, "reference"),
                              test_utils=(*tests, "test_aot_dispatch_dynamic"))
        torch.library.opcheck(
            ops.attention_backward, (*(x.detach() for x in inputs), o, lse, given.do, None,
                                     *window, 0.3, "reference"), test_utils=tests[:2])


def test_a_second_derivative_is_refused_when_compiled_and_through_the_ops():
    x = torch.ones(1, 1, 2, 4, requires_grad=True)
    compiled = torch.compile(flash_attention, backend="aot_eager", fullgraph=True)
    (dq,) = torch.autograd.grad(compiled(x, x * 2, x).pow(2).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="double backward"):
        dq.sum().backward()
    o, _ = ops.attention_forward(x, x * 2, x, None, None, 0.5, "reference")
    (dq,) = torch.autograd.grad(o.pow(2).sum(), x, create_graph=True)
    with pytest.raises(NotImplementedError, match="flash_attention: double backward is not offered"):
        dq.sum().backward()


def test_unlike_dtypes_under_autocast_compile():
    given = problem(Shape(1, 2, 1, 9, 9, 8))
    q = given.q.bfloat16()
    compiled = torch.compile(flash_attention, backend="aot_eager", fullgraph=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(compiled(q, *given[1:3]), flash_attention(q, *given[1:3]))
        assert torch.equal(compiled(*given[:3]), flash_attention(*given[:3]))
    assert torch.equal(compiled(*given[:3]), flash_attention(*given[:3]))


def test_a_lazily_negated_tensor_compiles():
    given = problem(Shape(1, 2, 1, 9, 9, 8))
    compiled = torch.compile(flash_attention, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(torch._neg_view(-given.q), *given[1:3]), flash_attention(*given[:3]))


def test_an_error_names_the_argument_when_compiled_too():
    x = torch.ones(1, 1, 2, 4)
    compiled = torch.compile(flash_attention, backend="eager")
    with pytest.raises(Exception, match="expected head dimension 4 as in q, got 3"):
        compiled(x, x[..., :3], x[..., :3])


def test_a_scale_that_varies_breaks_no_graph():
    """At the second value torch makes the number a symbol."""
    compiled, _ = counted(lambda q, c: flash_attention(q, q, q, scale=c, softcap=50 * c))
    q = torch.randn(1, 2, 5, 8)
    for c in (0.1, 0.2, 0.3):
        torch.testing.assert_close(compiled(q, c), flash_attention(q, q, q, scale=c, softcap=50 * c))
