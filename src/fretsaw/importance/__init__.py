"""What each unit of a block is worth: pure algorithms on plain tensors."""
