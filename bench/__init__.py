"""Benchmarks: regard against its rivals, as ratios of medians measured side by side in one run."""
