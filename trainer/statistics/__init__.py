"""How certain a result is: every stage that claims a difference gets its confidence interval here.

The input is one number per window, since two decisions of one hour are not two pieces of evidence. ``intervals`` has
the mean with its interval, for a single look or valid at every look, the number of windows still needed, and rank
correlation. scipy is used where it has the method. Pure and seeded: the same numbers give the same interval on any
machine.
"""
