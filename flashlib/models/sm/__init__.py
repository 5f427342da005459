"""One streaming multiprocessor, simulated: who works when, and who waits for whom.

`parts` defines operations, roles and programs, `simulator` runs them, `operations` says how long each
operation occupies a unit, and `programs` and `blackwell` put those of FlashAttention in order.
"""
