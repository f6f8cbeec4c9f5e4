"""Children that run candidates, the memory shared with them, and what their parent checks."""
