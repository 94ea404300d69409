"""Small programs that use Everlong."""
