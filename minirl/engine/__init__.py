"""mu: the engines that sample responses."""
