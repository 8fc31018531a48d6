"""Masked language modelling and sentence order."""
