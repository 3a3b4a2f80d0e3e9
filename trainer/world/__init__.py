"""A simulated market with agents of known skill: data for anyone, and the truth to test against.

``market`` makes an hour from a seed, with news in the words of ``headlines``. ``observation`` says what an agent can
know of it, in the words that its model is given. The policy of one of the ``agents`` answers, ``actions`` reads the
answer, ``guard`` stops what is not allowed, ``exchange`` fills the rest and keeps the books. ``player`` runs the agents
of a window side by side in memory, ``play`` puts the windows into the database with ``record``, ``dirt`` soils them,
and ``replay`` asks "what if" afterwards. Every draw is ``chance``: the same world on every machine. What was played is
remembered by ``trainer.ledger.simulation``; the planted skill reaches nobody who trains or judges.
"""
