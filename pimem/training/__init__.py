"""Training: the supervised cold start of small models."""
