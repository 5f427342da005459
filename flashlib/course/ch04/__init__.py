"""Chapter 04, Run softmax online: its figures, exercises, solutions and lab."""
