"""One streaming multiprocessor, simulated: who works when, and who waits for whom.

`parts` has the words, `simulator` runs them, `operations` says how long each occupies a unit, and
`programs` and `blackwell` put FlashAttention's operations in order.
"""
