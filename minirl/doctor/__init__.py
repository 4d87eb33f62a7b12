"""`minirl doctor`: what this machine has, and how far engine and trainer stand apart on it."""
