"""Multi-hop questions with candidate answers: QAngaroo's WikiHop (Welbl et al., 2018)."""
