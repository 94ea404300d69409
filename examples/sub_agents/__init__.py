"""An agent whose tools are other agents."""
