"""Models outside the zoo: graphs for other runtimes."""
