"""Reference solutions, one module per chapter; a student build leaves this package out."""
