"""Which variant each block takes: library, scores, and the mixed-integer program."""
