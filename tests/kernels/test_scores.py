"""Softcap, ALiBi and sinks at the door of the ops: what is refused, compiled, mapped and passed on."""

import pytest

torch = pytest.importorskip("torch")

from flashlib.kernels import KVCache, flash_attention, flash_decode, ops  # noqa: E402
from flashlib.kernels.problem import Device, Problem  # noqa: E402
from flashlib.kernels.scores import PLAIN, Kind  # noqa: E402
from tests.kernels.behaviours_scores import scored  # noqa: E402
from tests.kernels.decode_cases import Case, expected, inputs, paged, scores_of  # noqa: E402
from tests.kernels.problems import Shape, dense, problem, solve  # noqa: E402
from tests.kernels.test_reference import at  # noqa: E402

GOOD, HEADS = torch.ones(2, 4, 5, 8), torch.ones(4)
WRONG = {                          # what is given, the error, its message
    "softcap 0": ({"softcap": 0.0}, ValueError, "softcap: expected a number above 0.* for none, g"),
    "softcap negative": ({"softcap": -3}, ValueError, "softcap: expected a number above 0.* got -3"),
    "softcap nan": ({"softcap": float("nan")}, ValueError, "softcap: expected a finite .* got nan"),
    "softcap infinite": ({"softcap": float("inf")}, ValueError, "softcap: expected a finite number"),
    "softcap too large": ({"softcap": 1e30}, ValueError, r"softcap: .* to 1e\+15, .* got 1e\+30"),
    "softcap a text": ({"softcap": "50"}, TypeError, "softcap: expected a number, got '50'"),
    "softcap a flag": ({"softcap": True}, TypeError, "softcap: expected a number, got True"),
    "softcap a tensor": ({"softcap": torch.ones(())}, TypeError, "softcap: expected a number, got t"),
    "alibi a list": ({"alibi": [1.0] * 4}, TypeError, "alibi: expected None or a .* got list"),
    "alibi half": ({"alibi": HEADS.half()}, TypeError, "alibi: expected float32, got torch.float16"),
    "alibi of key heads": ({"alibi": HEADS[:2]}, ValueError,
                           r"alibi: expected shape \(4,\) or \(2, 4\), .* of q, got \(2,\)"),
    "alibi transposed": ({"alibi": torch.ones(4, 2)}, ValueError, r"alibi: .* got \(4, 2\)"),
    "alibi a mask": ({"alibi": torch.ones(2, 4, 5, 5)}, ValueError, r"alibi: .* got \(2, 4, 5, 5\)"),
    "alibi elsewhere": ({"alibi": HEADS.to("meta")}, ValueError,
                        "alibi: expected a tensor on cpu as q, got meta"),
    "alibi sparse": ({"alibi": HEADS.to_sparse()}, TypeError, "alibi: expected a dense .* got torch"),
    "alibi learned": ({"alibi": HEADS.clone().requires_grad_()}, NotImplementedError,
                      r"alibi: slopes have no gradient.* alibi.detach\(\), .*flex_attention"),
    "sink a number": ({"sink": 1.0}, TypeError, "sink: expected None or .* got float"),
    "sink whole": ({"sink": HEADS.int()}, TypeError, "sink: expected float16 or .* or float32, got"),
    "sink double": ({"sink": HEADS.double()}, TypeError, "sink: expected .* got torch.float64"),
    "sinks of a batch": ({"sink": torch.ones(2, 4)}, ValueError,
                         r"sink: expected shape \(4,\), .* of q, got \(2, 4\)"),
    "sink of none": ({"sink": torch.ones(0)}, ValueError, r"sink: expected shape .* got \(0,\)"),
}


@pytest.mark.parametrize("when", ["first", "known", "compiled"])
@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_scores_are_refused_by_name(wrong, when):
    options, kind, said = WRONG[wrong]
    if when == "compiled":
        with pytest.raises(kind, match=said):
            torch.vmap(lambda q: flash_attention(q, GOOD, GOOD, **options))(GOOD[None])
        return
    for op in (flash_attention, flash_decode):
        if when == "known":
            op(GOOD, GOOD, GOOD)
            op(GOOD, GOOD, GOOD, softcap=3.0, alibi=HEADS, sink=HEADS)
        with pytest.raises(kind, match=said):
            op(GOOD, GOOD, GOOD, **options)


@pytest.mark.parametrize("name, meant", [
    ("alibi_slopes", "did you mean alibi="), ("s_aux", "did you mean sink="),
    ("sinks", "did you mean sink="), ("score_mod", "torch.nn.attention.flex_attention"),
    ("attn_bias", "softcap=, alibi= and sink= alone")])
def test_what_others_call_it_and_what_we_do_not_have(name, meant):
    with pytest.raises(TypeError, match=meant):
        flash_attention(GOOD, GOOD, GOOD, **{name: HEADS})


@pytest.mark.parametrize("kind", [Kind(True, 0, 0), Kind(False, 1, 0), Kind(False, 2, 0),
                                  Kind(True, 1, 1)])
def test_auto_on_a_hopper_gpu_takes_triton_for_scores(kind):
    from flashlib.kernels.backends import choose

    gpu = Device("cuda", None, (9, 0), 132, "")
    for direction in ("forward", "backward"):
        for scores, name in ((PLAIN, "gluon"), (kind, "triton")):
            p = Problem.example(H=8, N_Q=4096, N_K=4096, D=128, dtype=torch.bfloat16, device=gpu,
                                scores=scores)
            assert choose(p, "auto", direction).name == name
        with pytest.raises(NotImplementedError, match="'gluon' expected"):
            choose(p, "gluon", "forward")


def test_auto_on_a_hopper_gpu_stays_with_gluon_for_sinks_alone():
    from flashlib.kernels.backends import choose

    gpu = Device("cuda", None, (9, 0), 132, "")
    for direction in ("forward", "backward"):
        p = Problem.example(H=8, N_Q=4096, N_K=4096, D=128, dtype=torch.bfloat16, device=gpu,
                            scores=Kind(sink=1))
        assert choose(p, "auto", direction).name == "gluon"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_compiled_it_equals_eager_bit_for_bit(dtype):
    given = scored(at(dtype), problem(Shape(2, 4, 2, 33, 29, 8, True), dtype), 3.0, 2, True)
    torch._dynamo.reset()
    compiled = torch.compile(flash_attention, backend="aot_eager", fullgraph=True)
    for x, y in zip(solve(given, compiled), solve(given, flash_attention), strict=True):
        assert torch.equal(x, y)


@pytest.mark.parametrize("slopes, sink", [(1, False), (2, True), (0, True)])
def test_the_registered_ops_hold_to_torchs_rules(slopes, sink):
    given = scored(at(torch.float32), problem(Shape(2, 4, 2, 5, 7, 8)), 3.0, slopes, sink)
    scores = given.softcap, given.alibi, given.sink
    leaves = [x.clone().requires_grad_() for x in given[:3]]
    tests = ("test_schema", "test_faketensor", "test_autograd_registration")
    torch.library.opcheck(ops.attention_forward, (*leaves, 3, 2, 0.3, "reference", *scores),
                          test_utils=(*tests, "test_aot_dispatch_dynamic"))
    o, lse, *_ = solve(given, flash_attention)
    torch.library.opcheck(ops.attention_backward, (*given[:3], o, lse, given.do, None, 3, 2, 0.3,
                                                   "reference", *scores), test_utils=tests[:2])


def test_vmap_and_per_sample_gradients_of_the_sink():
    given = problem(Shape(3, 4, 2, 9, 11, 8, True), torch.float64)
    given = scored(at(torch.float64), given, 3.0, 1, True)

    def loss(q, k, v, sink):
        o, lse = flash_attention(q[None], k[None], v[None], causal=True, softcap=3.0, alibi=given.alibi,
                                 sink=sink, return_lse=True)
        return o.square().sum() + lse.sum()

    gradients = torch.func.grad(loss, argnums=(0, 3))
    found = torch.vmap(gradients, in_dims=(0, 0, 0, None))(*given[:3], given.sink)
    many = torch.vmap(gradients)(*given[:3], given.sink.expand(3, 4))
    for b in range(3):
        q, sink = given.q[b].clone().requires_grad_(), given.sink.clone().requires_grad_()
        right = torch.autograd.grad(loss(q, given.k[b], given.v[b], sink), (q, sink))
        for x, y, z in zip(found, many, right, strict=True):
            torch.testing.assert_close(x[b], z)
            torch.testing.assert_close(y[b], z)


def test_a_second_derivative_is_refused():
    sink = HEADS.clone().requires_grad_()
    o = flash_attention(GOOD, GOOD, GOOD, sink=sink)
    (of_sink,) = torch.autograd.grad(o.square().sum(), sink, create_graph=True)
    with pytest.raises(NotImplementedError, match="double backward is not offered"):
        of_sink.sum().backward()


def test_inside_autocast_unlike_dtypes_meet():
    given = scored(at(torch.float32), problem(Shape(2, 4, 2, 9, 11, 8)), 3.0, 1, True)
    with torch.autocast("cpu", torch.bfloat16):
        mixed = flash_attention(given.q.bfloat16(), *given[1:3], softcap=3.0, alibi=given.alibi,
                                sink=given.sink.half())
    plain = flash_attention(*(x.bfloat16() for x in given[:3]), softcap=3.0, alibi=given.alibi,
                            sink=given.sink.half())
    assert torch.equal(mixed, plain)


def test_an_edit_in_place_of_the_sink_is_an_error():
    sink = torch.zeros(4).requires_grad_()
    o = flash_attention(GOOD, GOOD, GOOD, sink=sink)
    with torch.no_grad():
        sink += 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        o.sum().backward()


@pytest.mark.parametrize("causal, window", [(False, None), (True, None), (True, (6, 0))])
def test_decoding_with_scores_equals_float64(causal, window):
    case = Case(3, 4, 2, 2, 20, 8, causal, window, lengths=True)
    given, scores = inputs(case, torch.float64), scores_of(case)
    options = {"causal": causal, "window": window, "return_lse": True, "lengths": given.lengths}
    right = expected(case, *given, **scores)
    k, v, table = paged(given, 4)
    for more in ({"k": given.k, "v": given.v}, {"k": k, "v": v, "table": table}):
        for x, y in zip(flash_decode(given.q, **more, **options, **scores), right, strict=True):
            torch.testing.assert_close(x, y, rtol=0, atol=1e-6)     # slopes and sinks are float32


def test_a_cache_passes_scores_on():
    given, sink = problem(Shape(2, 4, 2, 3, 3, 8)), torch.randn(4)
    cache = KVCache(2, 2, 10, 8, dtype=torch.float32)
    got = cache.step(*given[:3], sink=sink, softcap=2.0, alibi=HEADS)
    right = flash_attention(*given[:3], causal=True, sink=sink, softcap=2.0, alibi=HEADS)
    torch.testing.assert_close(got, right)


@pytest.mark.filterwarnings("ignore")                       # torch's own: it is not compiled
def test_the_oracle_agrees_with_torchs_flex_attention():
    """The meaning is that of others: as a score_mod, and gpt-oss's way with one more column."""
    given = scored(at(torch.float64), problem(Shape(2, 4, 4, 7, 9, 8), torch.float64), 3.0, 2, True)
    from torch.nn.attention.flex_attention import AuxRequest, flex_attention

    def score(s, b, h, i, j):
        return 3.0 * torch.tanh(s / 3.0) - given.alibi[b, h] * (i + 2 - j).abs()

    o, aux = flex_attention(*given[:3], score_mod=score, return_aux=AuxRequest(lse=True))
    lse = aux.lse
    new = torch.logaddexp(lse, given.sink[None, :, None])
    for x, y in zip(dense(given), (o * torch.exp(lse - new)[..., None], new), strict=False):
        torch.testing.assert_close(x, y)


def test_slopes_of_float64_are_not_rounded():
    """At a distance of 5,000 keys a slope of −1/3 in float32 is off by 5e-5."""
    q, k = torch.randn(1, 1, 1, 8, dtype=torch.float64), torch.randn(1, 1, 5000, 8, dtype=torch.float64)
    slope = torch.full((1,), -1 / 3, dtype=torch.float64)
    lse = flash_attention(q, k, k, alibi=slope, return_lse=True)[1]
    distance = torch.arange(4999, -1, -1, dtype=torch.float64)
    right = torch.logsumexp((q @ k.mT)[..., :] / 8**0.5 + distance / 3, -1)
    torch.testing.assert_close(lse, right, rtol=0, atol=1e-9)
