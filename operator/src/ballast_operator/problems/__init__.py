"""What is wrong with a ServingPool or its surroundings: each with a reason, the field to edit and the fix.

Every problem that a status can name is worded here, by pure functions from facts to `Problem`. `plan` decides which
problems hold objects back, `verdict` decides which conditions they belong to.
"""
