"""The novel classifier: the head and its fitting."""
