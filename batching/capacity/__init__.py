"""How many GPUs a load needs: the published designs' formulas first, then the same question put to the simulator.

`formulas` is arithmetic, `search` finds the smallest fleet that holds an objective in virtual time, `plan` joins the
two, and `designs` are the published designs as scenarios, with what they claim.
"""
