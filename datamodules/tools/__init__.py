"""Tools for corpora: check, convert, compute statistics, find near duplicates."""
