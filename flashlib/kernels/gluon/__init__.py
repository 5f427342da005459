"""The Gluon kernels for Hopper: device code only."""
