"""Weights that come from models of other sizes, and attentions that go into models of other projects."""
