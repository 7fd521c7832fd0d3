"""Named corpora with their download sources, and corpora in files of the user."""
