"""Placement: choosing the endpoint for one stage of one request, by costs."""
