"""A model on your own machine, behind a server that speaks OpenAI's chat completions."""
