"""Chapter 14, Outrun the exponential: v4: its figures, exercises, solutions and lab."""
