"""The second simulated world: errands with resources, partners and risks.

``errands`` generates an hour from a seed, with news in the words of ``vocabulary``; ``view`` is what an agent can know
of it, and the text that its model receives. ``carrying`` parses the answer, stops what is not possible and says what
comes of the rest; ``truth`` writes that down as facts. ``questions`` asks about words, places and items that nobody
plays with. ``rules`` is all of it as the machinery of ``trainer.world`` wants it.
"""
