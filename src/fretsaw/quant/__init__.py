"""Number formats below 16 bits: to the bit, their scales, and checkpoints written in them."""
