"""Recipes, their plans, and everything that is trained and evaluated from them."""
