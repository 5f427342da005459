"""What every backend of `flash_attention` must do under autograd and torch.func, a function each.

As in `behaviours`: the same list runs on every backend, and a failure is an assertion.
"""

from __future__ import annotations

import torch

from tests.kernels.behaviours import TOLERANCE, close, require
from tests.kernels.problems import dense, off


def refused(message, call, *args, **options):
    """Raise AssertionError unless the call is refused in a sentence that names the op."""
    try:
        call(*args, **options)
    except NotImplementedError as error:
        require(str(error).startswith("flash_attention") and message in str(error), f"unclear: {error}")
    else:
        raise AssertionError(f"not refused: {message}")


def check_only_some_outputs(at):
    """A gradient through lse alone, through O alone, and to one input alone."""
    given = at.problem(1, 2, 1, at.N, at.N, 16, True)
    expected = dense(given._replace(do=torch.zeros_like(given.do)))
    q, k, v = (x.clone().requires_grad_() for x in given[:3])
    lse = at(q, k, v, causal=True, return_lse=True)[1]
    lse.backward(given.dlse)
    close((q.grad, k.grad, v.grad), expected[2:], at.dtype, "through lse alone")
    expected = dense(given._replace(dlse=None))
    for place in range(3):
        inputs = [x.clone() for x in given[:3]]
        inputs[place].requires_grad_()
        at(*inputs, causal=True).backward(given.do)
        require(off(inputs[place].grad, expected[2 + place]) <= TOLERANCE[at.dtype], "one input")
        require(sum(x.grad is not None for x in inputs) == 1, "a gradient that nobody asked for")


def check_autograd_errors(at):
    """An in-place edit of a saved tensor ends in autograd's own error."""
    for place in range(3):
        for scale in (None, -1.0):
            inputs = [x.clone().requires_grad_() for x in at.problem(1, 1, 1, 5, 5, 16)[:3]]
            o = at(*inputs, scale=scale)
            with torch.no_grad():
                inputs[place].mul_(2)
            try:
                o.sum().backward()
            except RuntimeError as error:
                require("modified by an inplace operation" in str(error), f"unclear: {error}")
            else:
                raise AssertionError("an in-place edit of a saved tensor went unnoticed")


def check_double_backward(at):
    """The first gradient comes with create_graph too, and what differentiates it is refused by name."""
    q, k, v = (x.requires_grad_() for x in at.problem(1, 1, 1, 5, 5, 16)[:3])
    for loss in (lambda o: o.sum(), lambda o: o.float().pow(2).sum()):      # linear in O, and not
        (plain,) = torch.autograd.grad(loss(at(q, k, v)), q)
        (dq,) = torch.autograd.grad(loss(at(q, k, v)), q, create_graph=True)
        require(torch.equal(dq, plain) and dq.requires_grad, "the first gradient")
        for x in (q, k):
            refused("double backward", torch.autograd.grad, dq.sum(), x, retain_graph=True)
        refused("double backward", (loss(at(q, k, v)) + dq.pow(2).sum()).backward)
        require(q.grad is None and k.grad is None, "something was added before the refusal")


def check_tangents(at):
    """A forward-mode derivative is refused by name, however it is asked for; none vanishes."""
    from torch.autograd import forward_ad

    q, k, v = at.problem(1, 1, 1, 5, 5, 16)[:3]
    with forward_ad.dual_level():
        for x in (q, q.clone().requires_grad_()):
            dual = forward_ad.make_dual(x, torch.ones_like(q))
            refused("forward-mode", at, dual, k, v)
            refused("forward-mode", at, q, k, dual)
        require(torch.equal(at(q, k, v), at(q, k, v)), "without a tangent nothing is refused")
    refused("forward-mode", torch.func.jvp, at, (q, k, v), (q, k, v))
    refused("forward-mode", torch.func.jacfwd(at), q, k, v)


def check_transforms(at):
    """torch.func.grad, jacrev and vmap, and one inside the other, give what loops over them give."""
    given = at.problem(2, 4, 2, 5, 6, 16, True)
    q, k, v = given[:3]
    many = torch.stack((q, q * 2, q - 1), 1)

    def loss(q, k):
        return at(q, k, v, causal=True).float().pow(2).sum()

    def gradients(q):
        inputs = [x.clone().requires_grad_() for x in (q, k)]
        return torch.autograd.grad(loss(*inputs), inputs)

    each = [gradients(many[:, i]) for i in range(3)]
    alone = torch.func.grad(loss, argnums=(0, 1))(q, k)
    inside = torch.vmap(torch.func.grad(loss, argnums=(0, 1)), in_dims=(1, None))(many, k)
    around = torch.func.grad(lambda many: torch.vmap(loss, in_dims=(1, None))(many, k).sum())(many)
    for place in (0, 1):
        require(torch.equal(alone[place], each[0][place]), "torch.func.grad")
        for i in range(3):
            require(torch.equal(inside[place][i], each[i][place]), "vmap of grad")
    require(torch.equal(around, torch.stack([dq for dq, _ in each], 1)), "grad of vmap")
    o, lse = torch.vmap(lambda q: at(q, k, v, return_lse=True), in_dims=1, out_dims=1)(many)
    for i in range(3):
        o_i, lse_i = at(many[:, i], k, v, return_lse=True)
        require(torch.equal(o[:, i], o_i) and torch.equal(lse[:, i], lse_i), "vmap")
    q, k, v = (x[:1, :1, :2] for x in (q, k[:, :1], v[:, :1]))
    rows = torch.func.jacrev(lambda q: at(q, k, v))(q)
    expected = torch.autograd.functional.jacobian(lambda q: at(q, k, v), q)
    require(off(rows, expected) <= TOLERANCE[at.dtype], "jacrev")
