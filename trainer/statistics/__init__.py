"""How certain a result is: every stage that claims a difference gets its confidence interval here.

``intervals`` takes one number per window, since two decisions of one hour are not two pieces of evidence: the mean with
its interval, the number of windows still needed, and rank correlation. ``gain`` has what the gate decides by: an
interval that allows for rare losses, the yearly budget for harm, power, and the gain corrected for selection;
``hold_out`` says which windows are kept for it. ``shares`` takes questions with a known answer as units.
``calibration`` finds how often proposals with a score are right and from which score on enough of them are;
``confidence`` is the result. ``curriculum`` draws what is played or trained next. ``units`` takes one number per agent,
where agents were what was randomised: how far two sets of them are apart, in looks that stay valid together. scipy is
used where it has the method. Pure and seeded: the same numbers give the same interval on any machine.
"""
