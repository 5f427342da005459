"""Chapter 12, Overlap everything: v3: its figures, exercises, solutions and lab."""
