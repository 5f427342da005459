"""Chapter 11, Choose block sizes: its figures, exercises, solutions and lab."""
