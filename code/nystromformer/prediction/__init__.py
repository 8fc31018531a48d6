"""Finished fine-tuning runs on new texts."""
