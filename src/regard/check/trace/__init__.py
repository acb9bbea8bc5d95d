"""What an implementation computes, operation by operation, with the line of each."""
