"""Chapter 05, Fuse attention into one pass: its figures, exercises and solutions."""
