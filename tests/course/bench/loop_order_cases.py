"""Run both loop orders in Triton's interpreter and print JSON: errors, bytes moved, refusals."""

import json
import os

os.environ["TRITON_INTERPRET"] = "1"

import torch

from flashlib.course.bench import loop_order_kernels
from flashlib.course.notebook.interpreter_trace import watch
from tests.quick_interpreter import quicken

SMALL = {"BLOCK_M": 32, "BLOCK_N": 16}
VARIANTS = {
    "v1": ("v1", {}), "v1 late": ("v1", {"late": True}), "v1 parts": ("v1", {"rows": 32}),
    "v1 late parts": ("v1", {"rows": 32, "late": True}),
    "v2": ("v2", {}), "v2 parts": ("v2", {"rows": 32}),
    "v2 longest first": ("v2", {"rows": 32, "longest_first": True}),
}
CASES = [(torch.float32, (2, 2, 64, 16), SMALL), (torch.float32, (1, 1, 96, 32), SMALL),
         (torch.float32, (1, 1, 64, 16), {"BLOCK_M": 16, "BLOCK_N": 32}),
         (torch.float16, (1, 2, 64, 64), {"BLOCK_M": 16, "BLOCK_N": 64})]


def errors():
    """Return variant → dtype and shape → the largest error against float64, causal or not."""
    found = {}
    for dtype, shape, blocks in CASES:
        generator = torch.Generator().manual_seed(0)
        q, k, v = (torch.randn(shape, generator=generator).to(dtype) for _ in range(3))
        q = q * 4
        if shape[2] == 96:
            k[:, :, 0] *= 100                               # some rows see nobody else, others never it
        for name, (order, more) in VARIANTS.items():
            for causal in (False, True):
                if more.get("rows", shape[2]) % blocks["BLOCK_M"]:
                    continue
                o_dtype = torch.float32 if "late" in name else None
                call, o = loop_order_kernels.launcher(order, q, k, v, causal=causal, o_dtype=o_dtype,
                                                      **more, **blocks)
                call()
                s = q.double() @ k.double().mT / shape[3] ** 0.5
                if causal:
                    s = s.masked_fill(torch.ones_like(s, dtype=torch.bool).triu(1), -torch.inf)
                error = (o.double() - torch.softmax(s, -1) @ v.double()).abs().max().item()
                found[f"{name} {dtype} {shape} {causal}"] = error
    return found


def moved():
    """Return order → tensor → bytes loaded and stored by one head at one shape."""
    found = {}
    for order, kernel in (("v1", loop_order_kernels.flash_fwd_v1_order_kernel),
                          ("v2", loop_order_kernels.flash_fwd_v2_order_kernel)):
        q, k, v = (torch.randn(1, 1, 64, 16) for _ in range(3))
        o, m, l = torch.zeros_like(q), torch.full((1, 1, 64), -torch.inf), torch.zeros(1, 1, 64)
        with watch(Q=q, K=k, V=v, O=o, m=m, l=l) as seen:
            kernel[(1,)](q, k, v, o, m, l, 0.3, 1, 64, 64, 32, 16, 16, False, False, 1, order == "v2")
        found[order] = {name: [seen.nbytes(name, "load"), seen.nbytes(name, "store")]
                        for name in ("Q", "K", "V", "O", "m", "l")}
    return found


def refusals():
    """Return what the launcher says about tensors and parts that it cannot take."""
    found = {}
    for name, tensors, more in (
            ("ragged", [torch.zeros(1, 1, 65, 16)] * 3, {}),
            ("strides", [torch.zeros(1, 1, 64, 16), torch.zeros(1, 1, 16, 64).mT,
                         torch.zeros(1, 1, 64, 16)], {}),
            ("parts", [torch.zeros(1, 1, 64, 16)] * 3, {"rows": 48})):
        try:
            loop_order_kernels.launcher("v1", *tensors, **more)
        except ValueError as error:
            found[name] = str(error)
    return found


if __name__ == "__main__":
    quicken()
    print(json.dumps({"errors": errors(), "moved": moved(), "refusals": refusals()}))
