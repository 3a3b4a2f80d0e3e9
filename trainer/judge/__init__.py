"""The judge: decisions of a group, compared by somebody who knows what happened afterwards.

In comes a ``Group``, out comes a ``JudgedGroup`` with one verdict for each member, or a ``JudgeFailure`` with a reason;
never a default score. ``open`` gives the judge that the settings ask for. The LLM judge, ``ruler``, shows a group as
``view`` sees it, in the words of ``prompt``, whose ``text`` no agent can make structure of; ``client`` asks the
endpoint when ``limits`` let it, and ``prompt`` reads the reply. What was paid for is kept in the ledger and never asked
twice. ``outcome`` is the offline stand-in with the same interface, and ``cost`` says what judging takes before and
after it.
"""
