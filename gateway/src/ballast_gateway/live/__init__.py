"""The fleet as it is now, for people: a page in the browser and `ballast top`, both of one snapshot.

Only the admin port serves it, read only. Frames are made while somebody watches, and never cost more than a hundredth
of a core: a fleet whose frames take longer gets fewer of them.
"""
