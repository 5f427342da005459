"""Chapter 16, Go around the ring: its figures, exercises, solutions and lab."""
