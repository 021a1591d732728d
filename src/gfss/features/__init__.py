"""Encoder features of data sets, and the episodes and tasks that are made of them."""
