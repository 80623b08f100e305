"""A Llama with 379,200 random weights, for servers that must be real and small."""
