"""Data sets, one file each, and their common type."""
