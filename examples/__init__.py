"""Programs that use Everlong; examples/README.md lists them."""
