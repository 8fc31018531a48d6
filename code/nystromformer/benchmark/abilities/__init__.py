"""Small synthetic tasks that tell attentions apart."""
