"""Weights that come from other models: of other sizes, and later of other projects."""
