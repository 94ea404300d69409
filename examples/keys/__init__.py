"""Keys: seal, rotate, retire."""
