"""pi: the trainer."""
