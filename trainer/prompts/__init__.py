"""Prompts: which change to a prompt helps, learnt from judged verdicts.

``structure`` is a prompt in parts, to and from text; ``material`` what a game offers to changes of it; ``mutations``
the five changes as operators, with what every result must hold; ``writer`` lets a model write them. ``market`` is the
simulated market's prompt and material. ``experience`` is what passes between the policy and whoever asks it; ``policy``
selects and learns, with the networks and PPO of ``network``. In the ``arena`` mutations earn judged rewards, by which
``learn`` teaches the policy; ``compare`` puts it against its ``contestants`` and GEPA (``reflective``).

Importing ``policy``, ``network``, ``learn`` or ``compare`` loads torch; the rest does not.
"""
