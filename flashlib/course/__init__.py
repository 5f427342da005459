"""The teaching half: one folder a chapter (`ch00`, …), and what several chapters share.

A chapter's folder holds its `figures`, `exercises`, `solutions` and `lab`; `plots`, `widgets`,
`exercises`, `bench` and `notebook` serve all of them. Nothing outside this package imports it.
"""
