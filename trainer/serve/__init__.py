"""Serves the promoted checkpoint of the CPU backend over an OpenAI-compatible API.

``app`` has the routes and ``wire`` the shapes of requests and replies; ``checkpoints`` decides which checkpoint answers
whom, and notices promotions and rollbacks, in the pointer file and in the ledger.
"""
