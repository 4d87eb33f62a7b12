"""What happened: runs read back, claims tested, a page that shows both. No torch here."""
