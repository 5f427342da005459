"""Find the binaries that a call of ours runs, with registers and spills as the driver has them."""

import re
from collections import Counter


def kernels() -> tuple:
    """Return every kernel of ours that a call of `flash_attention` may launch."""
    from flashlib.kernels.triton import backward, forward, sums

    found = (forward.flash_fwd_kernel, backward.flash_bwd_delta_kernel,
             backward.flash_bwd_dkdv_kernel, backward.flash_bwd_dq_kernel,
             sums.flash_bwd_statistics_kernel, sums.flash_bwd_sum_kernel)
    try:
        from flashlib.kernels.gluon.backward_dkdv import flash_bwd_dkdv_hopper_kernel
        from flashlib.kernels.gluon.backward_dq import flash_bwd_dq_hopper_kernel
        from flashlib.kernels.gluon.backward_fused import flash_bwd_fused_hopper_kernel
        from flashlib.kernels.gluon.forward import flash_fwd_hopper_kernel
        from flashlib.kernels.gluon.forward_fp8 import flash_fwd_fp8_kernel
        from flashlib.kernels.gluon.forward_unspecialized import flash_fwd_pipelined_kernel
    except ImportError:                                     # a Triton without Gluon for Hopper
        return found
    return (*found, flash_fwd_hopper_kernel, flash_fwd_fp8_kernel, flash_fwd_pipelined_kernel,
            flash_bwd_dkdv_hopper_kernel, flash_bwd_dq_hopper_kernel, flash_bwd_fused_hopper_kernel)


def forget():
    """Let the next call load its kernels anew (from the cache on disk), so that `loaded` sees them."""
    from flashlib.kernels import plans

    plans.forget()
    for kernel in kernels():
        kernel.device_caches.clear()


def loaded():
    """Return a dictionary for every binary of ours that ran since `forget`, in order of launches.

    spilled_words: local memory of a thread in 4-byte words, as the driver reports it.
    """
    found = []
    for kernel in kernels():
        for compiled_kernels, *_ in kernel.device_caches.values():
            found += [(kernel.fn.__name__, binary) for binary in compiled_kernels.values()]
    return [{"kernel": name, "num_warps": binary.metadata.num_warps,
             "num_stages": binary.metadata.num_stages, "registers": binary.n_regs,
             "spilled_words": binary.n_spills, "shared_bytes": binary.metadata.shared,
             "matrix_instructions": matrix_instructions(binary.asm.get("ptx", ""))}
            for name, binary in found]


def matrix_instructions(ptx):
    """Return the shapes of the matrix instructions in a PTX text, such as `wgmma.m64n64k16×8`."""
    shapes = re.findall(r"\b(wgmma\.mma_async|mma\.sync|tcgen05\.mma)\S*?\.(m\d+n\d+k\d+)", ptx)
    counted = Counter(f"{name.split('.')[0]}.{shape}" for name, shape in shapes)
    return "+".join(f"{name}×{count}" for name, count in sorted(counted.items()))


def worst(binaries):
    """Return the largest registers, spilled words and shared memory over some binaries."""
    keys = ("registers", "spilled_words", "shared_bytes")
    return {key: max((binary[key] for binary in binaries), default=None) for key in keys}
