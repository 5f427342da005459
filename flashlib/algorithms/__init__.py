"""Readable NumPy, one algorithm a file, each complete on its page and counted by the machine."""
