"""Error patterns: what goes wrong again and again, counted by week and agent, with significance over many patterns.

``faults`` reads them off a trajectory: a code from a closed list where there is one, else the text of the error, and
what an LLM judge found weak. ``templates`` groups texts that differ only in names and numbers. ``significance`` counts
them and says which are more than chance. Patterns are shown to people, raise the priority of a replay and the weight of
a group in its step. Of them only codes from the closed list reach a prompt, as limits in our own words
(``trainer.prompts.material``); a text never does.
"""
