"""`python -m flashlib` says what this machine can run."""

from flashlib import doctor

print(doctor())
