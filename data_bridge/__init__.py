"""Postgres and the producer's formats: what agents logged in, typed windows out.

Nothing in this package imports torch or art when it is imported; ``art_converter`` does so when called.
"""
