"""From a softmax model to another attention, with a little training."""
