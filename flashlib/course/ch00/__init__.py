"""Chapter 00, Start here: its figures, exercises and solutions."""
