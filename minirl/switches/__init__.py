"""Every switch is live: what changes in one batch between two arms of a sweep that differ in one choice."""
