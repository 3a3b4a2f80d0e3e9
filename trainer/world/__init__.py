"""Simulated worlds with agents of known skill: data for anyone, and the truth to test against.

There are two, a market and ``quests``; ``rules`` says what the machinery asks of a world, ``market_rules`` and
``quests.rules`` answer, ``worlds`` finds them. Both write and read sentences by ``grammar``, about what ``regimes``
make of it for hours at a time.

In the market, ``market`` generates an hour from a seed, with news that ``headlines`` writes in the words of
``vocabulary``. ``observation`` is what an agent can know of it, and the text that its model receives. The policy of one
of the ``agents`` answers, ``actions`` parses the answer, ``guard`` stops what is not allowed, ``exchange`` fills the
other orders and keeps the accounts. ``arms`` are the markets of a curriculum, ``states`` say where exploring is wanted
and where it is not; ``leave_one_out`` plays an hour again without an agent's orders, and ``questions`` asks about words
and tickers that nobody plays with.

In every world ``lessons`` are put into the agents' prompts. ``player`` runs the agents of a window side by side in
memory, ``play`` writes windows to the database with ``record``, ``dirt`` adds faults, ``replay`` evaluates other
replies afterwards. All randomness comes from ``chance``: the same world on every machine. ``trainer.ledger.simulation``
stores what was played; nothing that trains or judges sees the planted skill.
"""
