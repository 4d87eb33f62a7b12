"""The objective: one loss line and the six choices that fill it in."""
