"""Parallel execution: `engine` maps a function over chunks in threads and runs iterators in a background thread,
`worker_processes` runs functions that hold the GIL in child processes, and `ray_engine` runs tasks on a Ray cluster.
"""
