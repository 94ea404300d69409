"""What operators use: the service functions, and the codec server."""
