"""Errors, files, progress, devices, processes: what every package needs, without knowledge of segmentation."""
