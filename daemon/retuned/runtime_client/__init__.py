"""Client of the runtime's control socket, and of the folders beside it."""
