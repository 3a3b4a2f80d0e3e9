"""Serves the promoted checkpoint of the CPU backend over an OpenAI-compatible API.

``wire`` is the API's shapes, ``checkpoints`` which checkpoint answers and how promotions are noticed, ``app`` the
routes.
"""
