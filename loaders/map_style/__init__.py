"""Reads any map-style dataset: `map_loader` over a `rank_sampler`, reproducible random numbers, and row subsets."""
