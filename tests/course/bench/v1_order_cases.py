"""Run the kernel in v1's loop order in Triton's interpreter and print JSON: errors, and bytes moved."""

import json
import os

os.environ["TRITON_INTERPRET"] = "1"

import torch

from flashlib.course.bench import v1_order
from flashlib.course.notebook.interpreter_trace import watch


def main():
    """Print the largest error by dtype and shape, and loads and stores of every tensor at one shape."""
    errors, moved = {}, {}
    for dtype, shape, blocks in ((torch.float32, (2, 2, 64, 16), (32, 16)),
                                 (torch.float32, (1, 1, 96, 32), (32, 32)),
                                 (torch.float16, (1, 2, 64, 64), (16, 64))):
        generator = torch.Generator().manual_seed(0)
        q, k, v = (torch.randn(shape, generator=generator).to(dtype) for _ in range(3))
        q = q * 4
        if shape[2] == 96:
            k[:, :, 0] *= 100                               # some rows see nobody else, others never it
        o = v1_order.forward(q, k, v, BLOCK_M=blocks[0], BLOCK_N=blocks[1])
        s = q.double() @ k.double().mT / shape[3] ** 0.5
        errors[f"{dtype} {shape}"] = (o.double() - torch.softmax(s, -1) @ v.double()).abs().max().item()
    q, k, v = (torch.randn(1, 1, 64, 16) for _ in range(3))
    o, m, l = torch.zeros_like(q), torch.full((1, 1, 64), -torch.inf), torch.zeros(1, 1, 64)
    with watch(Q=q, K=k, V=v, O=o, m=m, l=l) as seen:
        v1_order.flash_fwd_v1_order_kernel[(1,)](q, k, v, o, m, l, 0.3, 64, 32, 16, 16)
    for name in ("Q", "K", "V", "O", "m", "l"):
        moved[name] = [seen.nbytes(name, "load"), seen.nbytes(name, "store")]
    refusals = {}
    for name, tensors in {"ragged": [torch.zeros(1, 1, 65, 16)] * 3,
                          "strides": [torch.zeros(1, 1, 64, 16), torch.zeros(1, 1, 16, 64).mT,
                                      torch.zeros(1, 1, 64, 16)]}.items():
        try:
            v1_order.forward(*tensors)
        except ValueError as error:
            refusals[name] = str(error)
    print(json.dumps({"errors": errors, "moved": moved, "refusals": refusals}))


if __name__ == "__main__":
    main()
