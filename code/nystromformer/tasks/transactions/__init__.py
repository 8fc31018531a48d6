"""Sequences of events, such as a client's card transactions, and what they say of the client."""
