"""Models of others as experiment folders, and experiments as what others load."""
