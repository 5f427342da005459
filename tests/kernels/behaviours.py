"""What every backend of `flash_attention` must do, one function a promise; a failure is an assertion.

The same list runs on the tiled torch backend, on the kernels in Triton's interpreter, and on a GPU.
Needs torch only.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from flashlib.kernels import flash_attention
from tests.kernels.problems import NAMES, Problem, Shape, dense, off, problem, solve

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 6e-3, torch.bfloat16: 5e-2}


class Backend(NamedTuple):
    """Where a promise is tested: backend, dtype, device, and a length of more than two tiles."""

    impl: str
    dtype: torch.dtype
    device: str = "cpu"
    N: int = 70

    def __call__(self, q, k, v, **options):
        return flash_attention(q, k, v, impl=self.impl, **options)

    def problem(self, *shape, **options):
        return problem(Shape(*shape), self.dtype, device=self.device, **options)


def require(condition, what):
    """Raise AssertionError, also under `python -O`."""
    if not condition:
        raise AssertionError(what)


def close(got, expected, dtype, what="", slack=0.0):
    """Hold all of O, lse, dQ, dK, dV against what is expected."""
    for name, x, y in zip((*NAMES, "dsink"), got, expected, strict=False):
        error = off(x, y)
        require(error <= TOLERANCE[dtype] + slack, f"{what} {name}: error {error:.2e}")


def check_values(at: Backend, shape: Shape, **options):
    """O, lse and all gradients, also through lse, equal float64."""
    given = problem(shape, at.dtype, device=at.device, **options)
    got = solve(given, at)
    for x, y in zip((got[0], *got[2:]), (given.q, *given[:3]), strict=True):
        require(x.shape == y.shape and x.dtype == at.dtype and x.device == y.device, "shape or dtype")
    wide = torch.float64 if at.dtype == torch.float64 else torch.float32
    require(got[1].dtype == wide and got[1].shape == given.q.shape[:3], "lse's shape or dtype")
    close(got, dense(given), at.dtype, str(shape))


def check_empty(at):
    """No query or no batch entry gives nothing; no key gives O = 0, lse = −∞; gradients are 0."""
    for B, Nq, Nk in ((2, 0, 5), (0, 4, 5), (2, 3, 0), (2, 0, 0)):
        for causal in (False, True):
            given = at.problem(B, 4, 2, Nq, Nk, 8, causal)
            o, lse, *gradients = solve(given, at)
            require(o.shape == given.q.shape and lse.shape == given.q.shape[:3], "shape")
            require(not o.any() and bool((lse == -math.inf).all()), "O = 0 and lse = −∞")
            for x, of in zip(gradients, given[:3], strict=True):
                require(x.shape == of.shape and not x.any(), "zero gradients")


def check_rows_that_see_nothing(at):
    """With a causal mask and N_q > N_k the first rows give O = 0, lse = −∞ and zero gradients."""
    for Nq, Nk in ((at.N, at.N - 27), (at.N, 1), (5, 3), (at.N + 1, 33)):
        given = at.problem(1, 2, 1, Nq, Nk, 16, True)
        o, lse, dq, dk, dv = solve(given, at)
        blind = Nq - Nk
        require(not o[:, :, :blind].any() and not dq[:, :, :blind].any(), "O or dQ of a blind row")
        require(bool((lse[:, :, :blind] == -math.inf).all()), "lse of a blind row")
        require(bool(torch.isfinite(lse[:, :, blind:]).all()), "lse of a seeing row")
        close((o, lse, dq, dk, dv), dense(given), at.dtype, f"{Nq}×{Nk}")
        flooded = given._replace(do=given.do.clone(), dlse=given.dlse.clone())
        for into_o, into_lse in ((3e4, math.inf), (math.inf, -math.inf), (math.nan, math.nan)):
            flooded.do[:, :, :blind], flooded.dlse[:, :, :blind] = into_o, into_lse
            for x, y in zip(solve(flooded, at)[2:], (dq, dk, dv), strict=True):
                require(torch.equal(x, y), "the gradient that flows into a blind row changes something")


def check_large_logits(at):
    """Logits of 1e4 stay finite and right; so do fp16 scores beyond 65,504."""
    given = at.problem(1, 1, 1, at.N, at.N, 16, True)
    # The backward pass reads lse, which is rounded: an error of lse · ε in every probability.
    epsilon = torch.finfo(torch.promote_types(at.dtype, torch.float32)).eps
    given = given._replace(q=given.q.sign() * 50, k=given.k.sign() * 50, scale=1.0)  # up to 40,000
    got, expected = solve(given, at), dense(given)
    close(got[:2], expected, at.dtype, "logits of 4e4")
    close(got, expected, at.dtype, "logits of 4e4", slack=4e4 * epsilon)
    given = given._replace(q=given.q * 4, k=given.k * 2, scale=2.0 ** -9)            # scores of 3e5
    close(solve(given, at), dense(given), at.dtype, "scores of 3e5", slack=2e3 * epsilon)


def check_low_logits(at):
    """Raw logits far below zero, in tiles that a mask cuts as well: none is lost to the mask's fill."""
    for low in (50.0, 500.0):                               # about −2,500 and −250,000
        given = at.problem(1, 1, 1, at.N, at.N + 5, 16, True, scale=0.25 / low)
        q, k = given.q.clone(), given.k.clone()
        q[..., 0], k[..., 0] = low, -low
        given = given._replace(q=q, k=k)
        slack = low * torch.finfo(torch.promote_types(at.dtype, torch.float32)).eps
        close(solve(given, at), dense(given), at.dtype, f"logits of −{low * low:.0f}", slack=slack)


def check_one_key(at):
    """With one key there is nothing to weigh: O is V, and dQ and dK are zero to float32's rounding."""
    given = at.problem(1, 2, 2, at.N, 1, 64, with_lse=False)
    o, _, dq, dk, _ = solve(given, at)
    require(torch.equal(o, given.v.expand(o.shape)), "O is not V")
    for name, x in (("dQ", dq), ("dK", dk)):                # a delta of rounded products gives 1e-3
        require(x.abs().max().item() < 1e-4, f"{name} is {x.abs().max().item():.1e}, not 0")


def check_growing_maximum(at):
    """A row's maximum may grow from key tile to key tile, by little or by 2**8 and more."""
    epsilon = torch.finfo(torch.promote_types(at.dtype, torch.float32)).eps
    for D, first, last in ((64, 0, 40), (64, 40, 0), (256, 40, 0)):
        given = at.problem(1, 1, 1, at.N, 3 * at.N, D, False)
        growth = torch.linspace(1 + first, 1 + last, 3 * at.N, device=at.device)[:, None]
        q, k = given.q.clone(), (given.k * growth).to(at.dtype)
        q[:, :, ::3] *= 0.01                                # these rows stay behind
        given = given._replace(q=q, k=k)
        # A logit is a sum of D products: in any order it is off by about ε times their absolute sum,
        # and so, relative to it, is its probability.
        slack = epsilon * (q.double().abs() @ k.double().abs().mT).max().item() / math.sqrt(D)
        close(solve(given, at), dense(given), at.dtype, f"D = {D}, growth to {last}", slack=slack)


def check_largest_values(at):
    """V = 65,504, the largest fp16, gives O = 65,504 and no infinity, however P is rounded."""
    largest = min(torch.finfo(at.dtype).max, 65504.0)
    given = at.problem(1, 1, 1, at.N, at.N, 16, False, with_lse=False)
    given = given._replace(v=torch.full_like(given.v, largest))
    o = at(*given[:3])
    require(bool(torch.isfinite(o).all()), "O is not finite")
    require(off(o, torch.full_like(o, largest)) <= TOLERANCE[at.dtype], "O is not 65,504")
    # One probability of 1, and many that a 16-bit P rounds up by nearly half a step.
    q, k = torch.zeros_like(given.q), torch.zeros_like(given.k)
    q[..., 0], k[:, :, 1:, 0] = 1.0, -1.0
    for p in (0.50025, 0.5022):
        o = at(q, k, -given.v, scale=-math.log(p))
        require(bool(torch.isfinite(o).all()), "O is not finite where P is rounded up")


def check_scale(at):
    """A scale of 0 gives the mean of V; a negative one is right, and so are the gradients."""
    for scale in (0, 0.0, -0.25, -3.0, 1e-6, 2.5):
        for causal in (False, True):
            given = at.problem(1, 2, 1, at.N - 3, at.N, 16, causal, scale=scale)
            close(solve(given, at), dense(given), at.dtype, f"scale {scale}")
    given = at.problem(1, 1, 1, 5, at.N, 16, scale=0)
    mean = given.v.double().mean(2, keepdim=True).expand(-1, -1, 5, -1)
    require(off(at(*given[:3], scale=0), mean) <= TOLERANCE[at.dtype], "not the mean of V")


LAYOUTS = {
    "transposed heads": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "transposed last": lambda x: x.transpose(2, 3).contiguous().transpose(2, 3),
    "every second column": lambda x: torch.stack((x, x * 9), -1).flatten(-2)[..., ::2],
    "sliced rows": lambda x: torch.cat((x * 7, x, x * 7), 2)[:, :, x.shape[2]:2 * x.shape[2]],
    "every second row": lambda x: torch.stack((x, x * 9), 3).flatten(2, 3)[:, :, ::2],
    "sliced columns": lambda x: torch.cat((x[..., :3], x, x[..., :2]), -1)[..., 3:3 + x.shape[3]],
    "batch last": lambda x: x.permute(1, 2, 3, 0).contiguous().permute(3, 0, 1, 2),
    "misaligned": lambda x: torch.cat((x.new_zeros(1), x.flatten()))[1:].view(x.shape),
}


def check_layouts(at):
    """Any strides give what contiguous tensors give, in Q, K, V and in dO."""
    for causal in (False, True):
        given = at.problem(2, 2, 2, at.N, at.N, 16, causal)
        expected = dense(given)
        for name, lay in LAYOUTS.items():
            laid = Problem(*(lay(x) for x in given[:4]), given.dlse, causal, None)
            require(all(torch.equal(x, y) for x, y in zip(laid[:4], given[:4], strict=True)), name)
            close(solve(laid, at), expected, at.dtype, name)


def check_negative_bit(at):
    """Tensors that torch negates lazily are read with their sign: Q, K, V, dO, and lse's gradient."""
    given = at.problem(1, 2, 1, at.N, at.N + 5, 16, True)
    expected = solve(given, at)
    for place, name in enumerate(("q", "k", "v", "do", "dlse")):
        lazy = list(given)
        lazy[place] = torch._neg_view(-given[place])
        require(lazy[place].is_neg() and torch.equal(lazy[place], given[place]), "not the same numbers")
        for got, x in zip(solve(Problem(*lazy), at), expected, strict=True):
            require(torch.equal(got, x), f"the negative bit of {name} is not seen")


def check_one_laid_apart(at):
    """Each of Q, K, V, dO in a layout of its own, and rows of lse's gradient with strides."""
    given = at.problem(2, 2, 1, at.N, at.N + 5, 16, True)
    expected = dense(given)
    for place, name in enumerate(("transposed heads", "misaligned", "transposed last",
                                  "every second row")):
        laid = list(given)
        laid[place] = LAYOUTS[name](laid[place])
        laid[4] = torch.stack((given.dlse, given.dlse), -1)[..., 0]
        close(solve(Problem(*laid), at), expected, at.dtype, name)
    laid = given._replace(dlse=torch.cat((given.dlse.new_zeros(1), given.dlse.flatten()))[1:]
                          .view(given.dlse.shape))
    close(solve(laid, at), expected, at.dtype, "misaligned dlse")


def check_expanded(at):
    """Stride 0: one batch entry, one head or one row shared by all; and the dO of a plain sum."""
    given = at.problem(1, 1, 1, at.N, at.N, 16, True)
    q, k, v = (x.expand(2, 3, -1, -1) for x in given[:3])
    do = given.do[:, :, :1].expand(2, 3, at.N, -1)
    spread = Problem(q, k, v, do, given.dlse.expand(2, 3, -1), True, None)
    close(solve(spread, at), dense(spread), at.dtype, "expanded batch and heads")
    same = Problem(given.q, given.k[:, :, :1].expand(-1, -1, at.N, -1), given.v,
                   given.do, given.dlse, True, None)
    close(solve(same, at), dense(same), at.dtype, "expanded rows")
    q, k, v = (x.detach().clone().requires_grad_() for x in given[:3])
    at(q, k, v, causal=True).sum().backward()                # its gradient has four strides of 0
    ones = given._replace(do=torch.ones_like(given.do), dlse=None)
    close((q.grad, k.grad, v.grad), dense(ones)[2:], at.dtype, "dO expanded from a scalar")


def check_one_tensor_for_all(at):
    """Where q is k is v, the three gradients add."""
    given = at.problem(1, 2, 2, at.N, at.N, 16, True, with_lse=False)
    x = given.q.clone().requires_grad_()
    at(x, x, x, causal=True).backward(given.do)
    _, _, *parts = dense(Problem(x, x, x, given.do, None, True, None))
    require(off(x.grad, sum(parts)) <= 2 * TOLERANCE[at.dtype], "the sum of dQ, dK and dV")


def check_grouped(at):
    """GQA and MQA equal repeated keys and values, bit for bit forward; gradients add by group."""
    for H, Hk in ((6, 2), (4, 1)):
        given = at.problem(2, H, Hk, at.N, at.N, 16, True)
        got = solve(given, at)
        again = [x.repeat_interleave(H // Hk, 1) for x in given[1:3]]
        apart = solve(Problem(given.q, *again, *given[3:]), at)
        require(torch.equal(got[0], apart[0]) and torch.equal(got[1], apart[1]), "O or lse")
        for x, y in zip(got[3:], apart[3:], strict=True):
            require(off(x, y.double().unflatten(1, (Hk, H // Hk)).sum(2)) <= 4 * TOLERANCE[at.dtype],
                    "dK or dV")


def check_unlike_widths(at):
    """O, lse and all gradients equal float64 where values have more columns than keys, or fewer."""
    for D, D_v in ((16, 40), (40, 16)):
        given, other = (at.problem(2, 4, 2, at.N, at.N, d, True) for d in (D, D_v))
        given = given._replace(v=other.v, do=other.do)
        got = solve(given, at)
        require(got[0].shape[3] == got[4].shape[3] == D_v and got[3].shape[3] == D, "columns")
        close(got, dense(given), at.dtype, f"{D} and {D_v}")


def check_options(at):
    """return_lse adds lse and changes nothing; no graph is kept where no gradient is needed."""
    given = at.problem(1, 2, 2, at.N, at.N, 16)
    o = at(*given[:3])
    both = at(*given[:3], return_lse=True)
    require(isinstance(both, tuple) and torch.equal(o, both[0]), "O with and without lse")
    q = given.q.clone().requires_grad_()
    require(at(q, *given[1:3]).requires_grad and not o.requires_grad, "requires_grad")
    with torch.no_grad():
        require(not at(q, *given[1:3]).requires_grad, "no_grad")
    with torch.inference_mode():
        require(torch.equal(at(*given[:3]), o), "inference mode")


def check_repeatable(at, times=3):
    """O, lse and all gradients are the same bits in every run."""
    given = at.problem(2, 4, 2, at.N, at.N, 16, True)
    first = solve(given, at)
    for _ in range(times - 1):
        for name, x, y in zip(NAMES, first, solve(given, at), strict=True):
            require(torch.equal(x, y), f"{name} differs from run to run")


def check_poisoned_surroundings(at):
    """Q, K, V and dO lie inside memory full of NaN, and none of it comes in."""
    for Nq, Nk, D, causal in ((at.N, at.N, 16, False), (at.N - 7, at.N + 9, 13, True),
                              (1, 1, 1, False)):
        given = at.problem(2, 2, 1, Nq, Nk, D, causal)
        inside = []
        for x in given[:4]:
            B, H, N, _ = x.shape
            around = torch.full((B + 2, H + 2, N + 130, D + 3), math.nan, dtype=at.dtype,
                                device=at.device)
            view = around[1:B + 1, 1:H + 1, 1:N + 1, 1:D + 1]
            view.copy_(x)
            inside.append(view)
        close(solve(Problem(*inside, *given[4:]), at), dense(given), at.dtype, "poisoned")
        flat = [torch.cat((x.flatten(), x.new_full((8192,), math.nan)))[:x.numel()].view(x.shape)
                for x in given[:4]]
        close(solve(Problem(*flat, *given[4:]), at), dense(given), at.dtype, "NaN behind the end")


def check_poisoned_query(at):
    """A NaN in a query, or in what flows into its O, never reaches the keys of later tiles."""
    given = at.problem(1, 2, 1, at.N, at.N, 16, True)
    clean = solve(given, at)
    later = slice(at.N - at.N // 8, None)
    for name in ("q", "do"):
        x = getattr(given, name).clone()
        x[:, :, 3] = math.nan
        got = solve(given._replace(**{name: x}), at)
        for place in (3, 4):
            require(torch.equal(got[place][:, :, later], clean[place][:, :, later]),
                    f"{NAMES[place]} of a later key")
        require(bool(got[3][:, :, :4].isnan().all()), "dK of the keys that the query sees")


def check_prefix(at):
    """With a causal mask, later keys change no bit of a row in an earlier tile."""
    given = at.problem(1, 1, 1, at.N, at.N, 16, True)
    o, lse = at(*given[:3], causal=True, return_lse=True)
    k, v = given.k.clone(), given.v.clone()
    k[:, :, -1], v[:, :, -1] = 9.0, -9.0
    o2, lse2 = at(given.q, k, v, causal=True, return_lse=True)
    require(torch.equal(o[:, :, :-1], o2[:, :, :-1]), "O")
    require(torch.equal(lse[:, :, :-1], lse2[:, :, :-1]), "lse")
    require(not torch.equal(o[:, :, -1], o2[:, :, -1]), "the last row must change")


# Lengths, head dimensions, heads and masks that are awkward for tiles of 16 to 128 rows.
SMALL_SHAPES = [Shape(*s) for s in (
    (1, 1, 1, 1, 1, 1), (1, 2, 2, 1, 1, 64, True), (2, 2, 1, 1, 70, 16), (1, 2, 2, 70, 1, 40, True),
    (1, 2, 2, 63, 63, 40), (1, 2, 2, 63, 63, 40, True), (1, 1, 1, 97, 97, 59, True),
    (1, 2, 1, 97, 113, 16), (2, 2, 2, 64, 64, 16, True), (1, 4, 2, 33, 65, 8, True),
    (1, 1, 1, 113, 63, 16, True), (1, 1, 1, 32, 128, 111), (1, 3, 1, 5, 113, 1, True),
    (1, 1, 1, 65, 31, 32), (1, 1, 1, 40, 40, 256, True), (1, 2, 1, 64, 64, 16),
    (1, 1, 1, 64, 96, 64, True))]
SHAPES = [*SMALL_SHAPES, *(Shape(*s) for s in (
    (1, 2, 1, 1023, 1025, 40, True), (1, 1, 1, 1025, 1023, 64, True), (1, 1, 1, 1025, 1025, 59),
    (1, 2, 2, 130, 270, 111, True), (2, 4, 4, 256, 128, 128, True), (1, 1, 1, 257, 300, 256),
    (3, 6, 2, 129, 128, 24, True), (1, 8, 1, 128, 129, 111)))]
