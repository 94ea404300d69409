"""An existing Temporal application that adopts the plugin, and goes back."""
