"""Benchmarks: one question a file, ratios inside one run."""
