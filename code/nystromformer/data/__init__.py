"""Corpora, tokenizers and datasets of fixed-length rows. Imports no torch."""
