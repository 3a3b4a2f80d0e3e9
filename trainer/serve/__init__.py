"""Serves the promoted checkpoint of the CPU backend over an OpenAI-compatible API.

``app`` has the routes and who may use them, and ``wire`` the shapes of requests and replies; ``checkpoints`` decides
which checkpoint answers whom (the promoted one, a canary for its agents, or a pinned one), and notices promotions and
rollbacks, in the pointer file and in the ledger. A request is finished by the checkpoint that it began with, and the
server goes on with what it knows while Postgres is away.

The model runs in this process, or in several ``engines``: each is an ``engine_process``, which the server holds as an
``engine_child`` and talks to in ``engine_orders``.
"""
