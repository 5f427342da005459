"""Chapter 12b, Fuse the backward: its figures, exercises, solutions and lab."""
