"""Multi-hop questions with candidate answers: QAngaroo's WikiHop and MedHop (Welbl et al., 2018)."""
