"""The number of GPUs that a load needs: by the published designs' formulas, and by simulation.

`formulas` is arithmetic, `search` finds the smallest fleet that meets an objective in virtual time, `plan` joins the
two, and `designs` has the published designs as scenarios, with their claims.
"""
