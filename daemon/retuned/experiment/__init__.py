"""The lab run elsewhere: in a child process, in a pod, and the transport of results."""
