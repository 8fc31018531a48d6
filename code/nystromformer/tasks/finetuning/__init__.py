"""What fine-tuning tasks share: from text and a pretrained checkpoint to metrics, for a grid of settings and seeds."""
