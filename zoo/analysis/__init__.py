"""Analysis of finished runs: comparison, significance tests, pictures and the report page."""
