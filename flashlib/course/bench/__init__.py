"""Measurements: of the course itself, and of attention, with where and how they were made."""
