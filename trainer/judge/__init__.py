"""The judge: compares the decisions of a group, knowing what happened afterwards.

The input is a ``Group``; the output is a ``JudgedGroup`` with one verdict per member, or a ``JudgeFailure`` with a
reason, never a default score. ``open`` returns the judge that the settings select. The LLM judge is ``ruler``: ``view``
decides what it is shown of a group, ``prompt`` writes the question and ``reply`` reads the answer, ``text`` keeps
agents' text from acting as structure in it, ``adaptive`` decides in how many orders a group is shown, ``luck`` joins
the scores of two passes, ``calls`` pays for each call within ``limits``, ``client`` speaks with the endpoint, and
``offenders`` finds the members that make it refuse a group. Every paid verdict is kept in the ledger and never
requested twice. ``outcome`` is the offline stand-in for markets with the same interface, ``reward`` the one for any
world, ``sound`` judges a group without the rows that make a judge raise, ``writing`` has the same model write a text,
and ``cost`` has the prices and the estimate.
"""
