"""Chapter 07, Recompute the backward: its figures, exercises and solutions."""
