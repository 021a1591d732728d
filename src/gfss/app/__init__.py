"""The parts of the practitioner's tool; :mod:`gfss.app.segmenter` puts them together."""
