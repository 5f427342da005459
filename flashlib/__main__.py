"""`python -m flashlib` says what this machine can run."""

from flashlib.course.notebook.doctor import doctor

print(doctor())
