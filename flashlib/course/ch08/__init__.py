"""Chapter 08, Reorder the loops: v2: its figures, exercises, solutions and lab."""
