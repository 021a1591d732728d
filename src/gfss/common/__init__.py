"""What every room needs and that knows nothing of segmentation: errors, files, progress, devices, processes."""
