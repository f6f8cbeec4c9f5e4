"""Models of the six custom resources, and the messages between sidecar and operator."""
