"""What a world is, and the worlds that ship; everything that depends on the kind of game asks one of these objects.

``world`` is the interface and a world of facts, ``market`` the first game's, ``plain`` a world that a TOML file
describes (``quests.toml``, ``desk.toml``), ``load`` finds the one of ``--world``; ``own_class``
watches a team's class. Nothing here reads a database.
"""
