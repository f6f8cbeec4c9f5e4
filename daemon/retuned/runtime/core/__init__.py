"""The runtime in a server: slots, orders, epochs, control socket, supervision."""
