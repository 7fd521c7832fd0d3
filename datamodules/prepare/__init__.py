"""Preparation of corpora: file readers, tokenizers, vocabularies and the cache of encoded documents."""
