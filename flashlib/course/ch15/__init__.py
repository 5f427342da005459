"""Chapter 15, Decode with split-KV: its figures, exercises, solutions and lab."""
