"""Corpora to rows of tokens."""
