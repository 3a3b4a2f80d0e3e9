"""How sure we are: every stage that claims a difference asks here how far it can be trusted.

``intervals`` has the mean over windows with its interval, at one look or at every look, the windows that are still
needed, and rank correlation. What scipy knows is asked of scipy.
"""
