"""Core of the runtime: slots, orders, epochs, control socket, supervision."""
