"""Parallel execution: `compute` maps a function over chunks in threads, `worker_processes` runs functions that hold the
GIL in child processes, `prefetch` runs an iterator in a background thread, and `cpu_count` counts usable CPU cores.
"""
