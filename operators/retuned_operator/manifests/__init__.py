"""What the operator writes to Kubernetes."""
