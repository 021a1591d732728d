"""The parts of the practitioner's tool; :mod:`gfss.segmenter` puts them together."""
