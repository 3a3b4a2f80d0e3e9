"""How sure we are: every stage that claims a difference asks here how far it can be trusted.

In comes one number a window, since two decisions of one hour are not two pieces of evidence. ``intervals`` gives the
mean with its interval, at one look or at every look, the windows that are still needed, and rank correlation. What
scipy knows is asked of scipy. Pure and seeded: the same numbers give the same interval on any machine.
"""
