"""Chapter 13, Squeeze into FP8: v3: its figures, exercises, solutions and lab."""
