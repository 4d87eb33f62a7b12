"""An arm's algorithm in the words of other stacks."""
