"""PT2 compilation: what is compiled, with which shapes, from which cache, and how its time is seen (paper IV-B)."""
