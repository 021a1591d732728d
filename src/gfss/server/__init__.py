"""The page and the REST interface on top of a model and a folder of images."""
