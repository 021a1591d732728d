"""Computations in a faster form that gives the same numbers."""
