"""Chapter 10, Write FlashAttention in Triton: its figures, exercises and solutions."""
