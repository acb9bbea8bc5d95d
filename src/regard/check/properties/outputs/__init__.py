"""Outputs: each query's weighted sums at their place, of the right heads and samples."""
