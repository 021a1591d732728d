"""Calibrators: networks and rules that correct fused scores."""
