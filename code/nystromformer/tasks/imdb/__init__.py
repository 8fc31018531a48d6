"""Sentiment of film reviews: the Large Movie Review Dataset of Maas et al. (2011)."""
