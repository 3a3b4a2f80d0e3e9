"""A simulated market with agents of known skill: data for anyone, and the truth to test against.

``market`` makes an hour from a seed, ``observation`` says what an agent can know of it, ``prompt`` puts that into
words, a policy answers, ``actions`` reads the answer, ``guard`` stops what is not allowed, ``exchange`` fills the
rest, ``play`` runs the agents of a window side by side into the recorder, and ``replay`` asks "what if" afterwards.
"""
