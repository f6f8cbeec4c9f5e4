"""Client of the runtime's control socket, and of the folders next to it."""
