"""Chapter 03, Keep softmax safe: its figures, exercises and solutions."""
