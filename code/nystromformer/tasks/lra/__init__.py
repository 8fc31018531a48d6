"""The Long Range Arena (Tay et al. 2021): its tasks' data."""
