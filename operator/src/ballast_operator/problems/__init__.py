"""What is wrong with a ServingPool or its surroundings: each with a reason, the field to edit and the fix.

Every problem that a status can name is worded here. Pure: functions from facts to `Problem`. Whether a problem holds
objects back is for `plan`, which condition it belongs to is for `verdict`.
"""
