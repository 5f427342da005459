"""Chapter 02, Tile a matmul: its figures, exercises, solutions and lab."""
