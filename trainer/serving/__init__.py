"""Serves the promoted checkpoint of the CPU backend over an OpenAI-compatible API.

``wire`` is the API's shapes, ``selection`` which checkpoint answers, ``follow`` how promotions are noticed,
``app`` the routes.
"""
