"""The Triton kernels: device code only."""
