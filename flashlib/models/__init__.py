"""Closed forms: what an algorithm moves, how long a GPU needs for it, which blocks fit.

Import the module you need, as in `from flashlib.models import roofline, traffic`.
"""
