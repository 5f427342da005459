"""Chapter 17: the race, and a model in which attention is an argument."""
