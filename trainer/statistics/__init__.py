"""How certain a result is: every stage that claims a difference gets its confidence interval here.

The input is one number per window, since two decisions of one hour are not two pieces of evidence. ``intervals`` has
the mean with its interval, for a single look or valid at every look, the number of windows still needed, and rank
correlation; ``gain`` has what the gate decides by: an interval that allows for rare losses, the yearly budget for harm,
power, and the gain corrected for selection. scipy is used where it has the method. Pure: the same numbers give the same
interval on any machine.
"""
