"""Errors, console output, files, metrics and run folders; imports no other package of the project."""
