"""Detectors of dataset formats: one module per format, with a function `detect` that yields candidates.

`candidate` has what they share: the candidate, and how well columns match the roles of a format.
"""
