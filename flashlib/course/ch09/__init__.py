"""Chapter 09, Write kernels in Triton: its figures, exercises and solutions."""
