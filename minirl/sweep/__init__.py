"""What a figure is: arms, seeds and claims in a file; its cells run side by side, resumed, watched. No torch here."""
