"""Chapter 01, Climb the memory wall: its figures, exercises, solutions and lab."""
