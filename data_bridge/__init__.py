"""Postgres and the producer's formats: the only room with SQL on the game's tables. Imports nothing of ``trainer``.

In: ``database`` opens the team's Postgres by its ``connection_url`` or the ``embedded`` one, ``migrate`` brings it up
to date, ``reader`` finds windows and fetches their rows, ``decode`` and ``outcomes`` turn those into the types of
``models``, and ``quality`` says which of them can be used and why the others cannot. ``survey`` does all of it and
keeps only numbers; ``art_converter`` turns what was judged into what ART trains.

Out: agents log through a ``recorder``, which holds a ``recording`` for each trajectory, keeps its row in a ``spool`` on
disk and inserts it as ``trajectory_rows`` says; ``record_openai`` does the logging for a chat client. ``outcomes``
writes what really happened, ``game_writes`` what the game reads back of a training, ``traces`` carries rows from one
database to another, and ``faulty_rows`` has the faults of real tables, for tests.

All of them: ``window_ids`` names the hours, ``errors`` are one sentence with an exit code, ``redaction`` keeps secrets
out of everything that leaves the process as text.

Importing a module of this package imports neither torch nor art; ``art_converter`` does so when called.
"""
