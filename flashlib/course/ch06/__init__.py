"""Chapter 06, Tile FlashAttention v1: its figures, exercises, solutions and lab."""
