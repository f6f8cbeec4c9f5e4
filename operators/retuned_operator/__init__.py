"""The Kubernetes operator of Retuned; its controllers call the same stages as the local daemon."""
