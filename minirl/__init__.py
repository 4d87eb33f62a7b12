"""minirl: throw exactly one switch of an RL recipe, run it with seeds, and say honestly what happened."""
