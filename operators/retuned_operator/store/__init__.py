"""The operator's volume, behind `retuned.ports`."""
