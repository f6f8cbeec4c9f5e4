"""A small inference server, its traffic, and the story that ``retuned demo`` tells with them."""
